"""Replays of a module's passes in training: when they are recorded, and what runs where they cannot be."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from megatape.distributed.topology import Topology, name_ranks
from megatape.distributed.values.exchange import gather_values
from megatape.errors import OutOfMemory, UserError
from megatape.utils.pytorch.recorder import Recorder
from megatape.utils.replaced_attribute import replaced_attribute
from megatape.zero.passes.recorded_passes import Inputs, RecordedPasses

LOG = logging.getLogger(__name__)

OUT_OF_MEMORY = "out of memory"


@dataclass(frozen=True)
class Recording:
    """How an engine records its passes.

    Attributes:
        make_recorder: Returns a new recorder.
        is_required: Whether passes that cannot be recorded are an error (training.cuda_graphs true). Otherwise they run as if
            nothing was to be recorded.
    """

    make_recorder: Callable[[], Recorder]
    is_required: bool = False


class Replays:
    """Replays of a module's passes.

    The first micro-batch records them. A micro-batch of other shapes, as after a stage of the length warm-up, records them
    again. All ranks record at the same micro-batch, and run without replays if one of them cannot record.

    Args:
        module: The module, whose forward pass returns a float32 scalar.
        recording: How to record its passes, or None to run them as they are.
        topology: All ranks.
    """

    def __init__(self, module: nn.Module, recording: Recording | None, topology: Topology) -> None:
        self._module = module
        self._recording = recording
        self._topology = topology
        self._forward: Callable[..., Tensor] = module.forward
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._passes: RecordedPasses | None = None
        self._is_suspended = False

    @property
    def are_planned(self) -> bool:
        """Whether passes are recorded, or will be."""
        return self._recording is not None

    def replacing_forward(self) -> AbstractContextManager[None]:
        """Return a context inside which calls of the module replay its forward pass, and then its backward pass. Collective."""
        if self._recording is None or self._is_suspended:
            return nullcontext()
        return replaced_attribute(self._module, "forward", self._replay_or_run)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Run passes without replays inside the block, so that hooks of submodules are called. Frees the recorded passes."""
        self._passes = None
        self._is_suspended = True
        try:
            yield
        finally:
            self._is_suspended = False

    def _replay_or_run(self, **inputs: Tensor | None) -> Tensor:
        """Replay the forward pass, recording it first if necessary."""
        assert self._recording is not None
        if self._passes is None or not self._passes.fits(inputs):
            self._passes = self._record(self._recording, inputs)
        if self._passes is None:
            self._recording = None
            return self._forward(**inputs)
        return self._passes.forward(inputs)

    def _record(self, recording: Recording, inputs: Inputs) -> RecordedPasses | None:
        """Record the passes of a micro-batch. Returns None on all ranks if a rank cannot. Collective."""
        # Free the memory of earlier shapes first.
        self._passes = None
        passes = None
        reason = None
        try:
            passes = RecordedPasses(self._forward, self._parameters, recording.make_recorder(), inputs)
        except RuntimeError as error:
            reason = _reason(error)
        reasons = gather_values(reason, self._topology)
        if not any(reasons):
            return passes
        _report(recording, reasons, self._topology)
        return None


def _reason(error: RuntimeError) -> str:
    """Return why recording failed, in one line."""
    cause: BaseException | None = error
    while cause is not None:
        # Ending a recording that ran out of memory raises another error.
        if isinstance(cause, torch.OutOfMemoryError):
            return OUT_OF_MEMORY
        cause = cause.__context__
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _report(recording: Recording, reasons: list[str | None], topology: Topology) -> None:
    """Log on the main rank why steps run without replays, or raise the reason on all ranks if they are required.

    Args:
        recording: How passes were to be recorded.
        reasons: Why each rank could not record them, or None if it could.
        topology: All ranks.
    """
    reason_by_rank = {rank: reason for rank, reason in enumerate(reasons) if reason is not None}
    reason = next(iter(reason_by_rank.values()))
    where = ""
    if topology.world_size > 1:
        where = f" on {name_ranks(list(reason_by_rank))}"
    failure = f"forward and backward pass cannot be recorded as a CUDA graph{where} ({reason})"
    if not recording.is_required:
        if topology.is_main:
            LOG.warning("training.cuda_graphs auto: %s: kernels are launched one by one instead", failure)
        return
    advice = "set it to auto, which launches kernels one by one instead"
    if reason == OUT_OF_MEMORY:
        error: UserError = OutOfMemory(
            f"training.cuda_graphs true: {failure}: lower training.micro_batch_size, set "
            f"training.activation_checkpointing to full, or {advice}"
        )
    else:
        error = UserError(f"training.cuda_graphs true: {failure}: {advice}")
    error.everywhere = True
    raise error
