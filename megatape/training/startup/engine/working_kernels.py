"""Selects attention backends and kernels by testing them on all ranks before a run uses them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from megatape.attention.attend import Backends, backends_by_priority, check_forced_backend, get_backend, select_backend
from megatape.attention.backend import AttentionRequirements, Backend
from megatape.config import Fp8Recipe, ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.distributed.topology import Topology, name_ranks
from megatape.distributed.values.exchange import gather_values, on_each
from megatape.encodings import encoding_of
from megatape.errors import UserError
from megatape.model.smoke_test import SmokeTest, smoke_test_backend, smoke_test_loss, smoke_test_rotation, smoke_test_update
from megatape.model.smoke_test_child import smoke_test_in_child
from megatape.nn.fp8 import fp8_linear_function
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.linear_function import LinearFunction, linear
from megatape.nn.loss import LossFormula
from megatape.registry import AUTO, BACKENDS

LOG = logging.getLogger(__name__)

# Maximum number of tokens in the sample of a smoke test, except for attention backends.
TOKENS = 256

# Reason why a rank cannot use our kernels, if other ranks can.
MISSING = "the package triton is not installed"


@dataclass(frozen=True)
class BackendSelection:
    """Attention backends that work on all ranks, and those that failed.

    Attributes:
        working: Names of working backends, in order of preference. Together they support all layers but `unsupported`.
        failures: Backend name -> which ranks it failed on, and why.
        unsupported: Requirements of layers that no working backend supports.
    """

    working: Backends
    failures: dict[str, str]
    unsupported: set[AttentionRequirements]


@dataclass(frozen=True)
class KernelTests:
    """Smoke tests of a model's backends and kernels on all ranks. All public methods are collective.

    What fails on one rank is used on no rank, and the main rank logs the reason.

    Attributes:
        model: Model configuration.
        dtype: Activation type.
        num_tokens: Tokens per sample. Kernels are tested on at most TOKENS.
        device: Device to run on.
        topology: All ranks.
    """

    model: ModelConfig
    dtype: torch.dtype
    num_tokens: int
    device: torch.device
    topology: Topology

    def rotates_by_kernel(self) -> bool:
        """Whether our own kernels rotate queries and keys before PyTorch's attention."""
        test = partial(smoke_test_rotation, self.model, self.dtype, self._sample_tokens, self.device)
        return self._works_everywhere(test, "rotation by PyTorch instead of our kernel")

    def updates_by_kernel(self, num_tensor_ranks: int) -> bool:
        """Whether our own kernels update the position state.

        Args:
            num_tensor_ranks: Number of tensor-parallel ranks.
        """
        test = partial(
            smoke_test_update,
            self.model,
            self.dtype,
            self._sample_tokens,
            self.device,
            num_tensor_ranks=num_tensor_ranks,
        )
        return self._works_everywhere(test, "position update by PyTorch instead of our kernel")

    def computes_loss_by_kernel(self, z_loss: float) -> bool:
        """Whether our own kernel computes the loss.

        Args:
            z_loss: Weight of the z-loss.
        """
        formula = LossFormula(self.model.vocab_size, SINGLE, self.model.logit_softcap, z_loss)
        test = partial(smoke_test_loss, formula, self.dtype, TOKENS, self.device)
        return self._works_everywhere(test, "loss by PyTorch instead of our kernel")

    def working_backends(
        self, requirements: Sequence[AttentionRequirements], forced: str, rotation_by_kernel: bool
    ) -> Backends:
        """Return the first backends that work and together support all layers, in order of preference.

        Args:
            requirements: Requirements of the layers, the most demanding ones first.
            forced: Backend to use (training.attention), or AUTO.
            rotation_by_kernel: Whether our own kernels rotate queries and keys, from `rotates_by_kernel`.

        Raises:
            UserError: training.attention forces a backend that does not support the model or fails, or no backend works.
                Raised on all ranks.
        """
        check_forced_backend(requirements[0], forced, self.model.encoding)
        selection = self._select_backends(requirements, forced, rotation_by_kernel)
        self._report(selection, forced, requirements[0])
        return selection.working

    def _select_backends(
        self, requirements: Sequence[AttentionRequirements], forced: str, rotation_by_kernel: bool
    ) -> BackendSelection:
        """Test backends in order of preference until they support all layers. Collective."""
        most_demanding = requirements[0]
        working: list[str] = []
        failures: dict[str, str] = {}
        unsupported = set(requirements)
        for name in backends_by_priority(forced, most_demanding):
            backend = get_backend(name)
            supported = [layer for layer in requirements if backend.unsupported_reason(layer) is None]
            if not unsupported or not supported:
                continue
            may_crash = self.device.type == "cuda" and (name == forced or backend.is_preferred_for(most_demanding))
            test = self._smoke_test(backend, rotation_by_kernel)
            failure = self._find_failure(name, supported, test, may_crash)
            if failure is not None:
                failures[name] = failure
                continue
            working.append(name)
            unsupported -= set(supported)
        return BackendSelection(tuple(working), failures, unsupported)

    def _find_failure(self, name: str, layers: Sequence[AttentionRequirements], test: SmokeTest, may_crash: bool) -> str | None:
        """Test a backend on all ranks. Collective.

        Args:
            name: Backend name.
            layers: Requirements of the layers that it supports.
            test: Sample and device.
            may_crash: Whether to test it in a child process of one rank per node first, where it cannot harm the ranks.

        Returns:
            The ranks on which it failed with the first reason, or None if it works on all.
        """
        if may_crash:
            child_reason = None
            if self.topology.local_rank == 0:
                child_reason = smoke_test_in_child(name, layers, test)
            failure = _summarize(child_reason, self.topology)
            if failure is not None:
                return failure
        return _summarize(smoke_test_backend(name, layers, test), self.topology)

    def _report(self, selection: BackendSelection, forced: str, most_demanding: AttentionRequirements) -> None:
        """Log failures, or raise if the run cannot do without the failed backends."""
        failures = selection.failures
        description = "; ".join(f"{name}: it {failure}" for name, failure in failures.items())
        if selection.unsupported:
            raise UserError(f"no attention backend works here: {description}")
        if forced in failures:
            alternatives = ", ".join(selection.working)
            raise UserError(
                f"training.attention is {forced}, but it {failures[forced]}: choose {AUTO}, or one of {alternatives}"
            )
        if not self.topology.is_main:
            return
        selected = select_backend(most_demanding, selection.working)
        if failures:
            LOG.info("attention by %s instead of %s", selected, description)
        if forced == AUTO:
            for name in BACKENDS:
                missed_reason = get_backend(name).missed_reason(most_demanding)
                if missed_reason is not None:
                    LOG.info("attention by %s instead of %s, which %s", selected, name, missed_reason)

    def _smoke_test(self, backend: Backend, rotation_by_kernel: bool) -> SmokeTest:
        encoding = encoding_of(self.model)
        state_width = 0
        if encoding.moves_state:
            state_width = encoding.state_width
        return SmokeTest(
            num_heads=self.model.num_heads // self.model.num_kv_heads,
            state_width=state_width,
            tokens=min(self.num_tokens, backend.smoke_test_tokens),
            device=self.device,
            rotation_by_kernel=rotation_by_kernel,
        )

    @property
    def _sample_tokens(self) -> int:
        return min(self.num_tokens, TOKENS)

    def _works_everywhere(self, test: Callable[[], str | None], fallback: str) -> bool:
        """Whether every rank has a kernel, and its smoke test succeeds on all of them. Collective.

        If all ranks lack the kernel, as CPUs do, nothing is logged.

        Args:
            test: Smoke test, which returns the reason why the kernel fails, or None.
            fallback: Description of the fallback, for the log.
        """
        has_kernel = has_kernels(self.device)
        if not any(gather_values(has_kernel, self.topology)):
            return False
        reason: str | None = MISSING
        if has_kernel:
            reason = test()
        failure = _summarize(reason, self.topology)
        if failure is not None and self.topology.is_main:
            LOG.info("%s: it %s", fallback, failure)
        return failure is None


def working_linear_function(recipe: Fp8Recipe, device: torch.device, topology: Topology) -> LinearFunction:
    """Return the function of linear layers, in FP8 unless training.fp8 is "none". Collective.

    Args:
        recipe: FP8 recipe (training.fp8).
        device: Device to run on.
        topology: All ranks.

    Raises:
        UserError: A rank lacks torchao, or its device does not support FP8. Raised on all ranks.
    """
    if recipe == "none":
        return linear
    context = f"training.fp8 {recipe} does not work: "
    linear_function = on_each(lambda: fp8_linear_function(recipe, device), topology, context=context)
    if topology.is_main and device.type == "cpu":
        LOG.info("training.fp8 %s is emulated on a CPU: it rounds as on a GPU, and is slower than bfloat16", recipe)
    return linear_function


def _summarize(reason: str | None, topology: Topology) -> str | None:
    """Return the ranks where a smoke test failed, with the first rank's reason, or None if it failed nowhere. Collective.

    Args:
        reason: Reason why it failed on this rank, or None.
        topology: All ranks.
    """
    reasons = gather_values(reason, topology)
    ranks = [rank for rank, text in enumerate(reasons) if text is not None]
    if not ranks:
        return None
    return f"failed when {name_ranks(ranks)} tried it ({reasons[ranks[0]]})"
