"""Selects attention backends and kernels by testing them on all ranks before a run uses them."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from megatape.attention.attend import Backends, backends_by_priority, check_forced_backend, get_backend, select_backend
from megatape.attention.backend import AttentionRequirements
from megatape.config import Fp8Recipe, ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.distributed.topology import Topology, name_ranks
from megatape.distributed.values.exchange import gather_values, on_all
from megatape.encodings import encoding_of
from megatape.errors import UserError
from megatape.model.smoke_test import BackendTrial, smoke_test_backend, smoke_test_loss, smoke_test_rotation, smoke_test_update
from megatape.model.smoke_test_child import smoke_test_in_child
from megatape.nn.fp8 import fp8_product
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.loss import LossFormula
from megatape.nn.product import LinearFunction
from megatape.registry import AUTO

LOG = logging.getLogger(__name__)

# Maximum number of tokens in the sample of a smoke test: two blocks of queries.
TOKENS = 256

# Reason why a rank cannot use our kernels, if other ranks can.
MISSING = "the package triton is not installed"


def working_backends(
    requirements: Sequence[AttentionRequirements],
    forced: str,
    model: ModelConfig,
    num_tokens: int,
    device: torch.device,
    topology: Topology,
    rotation_by_kernel: bool = False,
) -> Backends:
    """Return the first backends that work on all ranks and together support all layers, in order of preference. Collective.

    If a backend fails on one rank, no rank uses it, and the main rank logs the reason.

    Args:
        requirements: Requirements of the layers, the most demanding ones first.
        forced: Backend to use (training.attention), or AUTO.
        model: Model configuration.
        num_tokens: Tokens per sample. Backends are tested on at most TOKENS.
        device: Device to run on.
        topology: All ranks.
        rotation_by_kernel: Whether our own kernels rotate queries and keys, from `rotates_by_kernel`.

    Raises:
        UserError: training.attention forces a backend that does not support the model or fails, or no backend works. Raised on
            all ranks.
    """
    most_demanding = requirements[0]
    check_forced_backend(most_demanding, forced, model.encoding)
    encoding = encoding_of(model)
    state_width = 0
    if encoding.moves_state:
        state_width = encoding.state_width
    trial = BackendTrial(
        groups=model.num_heads // model.num_kv_heads,
        state_width=state_width,
        tokens=min(num_tokens, TOKENS),
        device=device,
        rotation_by_kernel=rotation_by_kernel,
    )

    working: list[str] = []
    failures: dict[str, str] = {}
    unsupported = set(requirements)
    for name in backends_by_priority(forced, most_demanding):
        backend = get_backend(name)
        supported = [layer for layer in requirements if backend.unsupported_reason(layer) is None]
        if not unsupported or not supported:
            continue
        reason = None
        if device.type == "cuda" and (name == forced or backend.is_preferred_for(most_demanding)):
            # Test it in a child process of one rank per node first, where it cannot harm the ranks.
            child_reason = None
            if topology.local_rank == 0:
                child_reason = smoke_test_in_child(name, supported, trial)
            reason = _summarize(child_reason, topology)
        if reason is None:
            reason = _summarize(smoke_test_backend(name, supported, trial), topology)
        if reason is not None:
            failures[name] = reason
            continue
        working.append(name)
        unsupported -= set(supported)

    description = "; ".join(f"{name}: it {reason}" for name, reason in failures.items())
    if unsupported:
        raise UserError(f"no attention backend works here: {description}")
    if forced in failures:
        alternatives = ", ".join(working)
        raise UserError(f"training.attention is {forced}, but it {failures[forced]}: choose {AUTO}, or one of {alternatives}")
    if failures and topology.is_main:
        LOG.info("attention by %s instead of %s", select_backend(most_demanding, tuple(working)), description)
    return tuple(working)


def rotates_by_kernel(
    model: ModelConfig, dtype: torch.dtype, num_tokens: int, device: torch.device, topology: Topology
) -> bool:
    """Whether our own kernels rotate queries and keys before PyTorch's attention, on all ranks. Collective.

    Args:
        model: Model configuration.
        dtype: Activation type.
        num_tokens: Tokens per sample. Kernels are tested on at most TOKENS.
        device: Device to run on.
        topology: All ranks.
    """
    test = partial(smoke_test_rotation, model, dtype, min(num_tokens, TOKENS), device)
    return _kernel_works_everywhere(test, device, topology, "rotation by PyTorch instead of our kernel")


def updates_by_kernel(
    model: ModelConfig,
    dtype: torch.dtype,
    tensor_size: int,
    num_tokens: int,
    device: torch.device,
    topology: Topology,
) -> bool:
    """Whether our own kernels update the position state, on all ranks. Collective.

    Args:
        model: Model configuration.
        dtype: Activation type.
        tensor_size: Number of tensor-parallel ranks.
        num_tokens: Tokens per sample. Kernels are tested on at most TOKENS.
        device: Device to run on.
        topology: All ranks.
    """
    tokens = min(num_tokens, TOKENS)
    test = partial(smoke_test_update, model, dtype, tokens, device, num_tensor_ranks=tensor_size)
    return _kernel_works_everywhere(test, device, topology, "position update by PyTorch instead of our kernel")


def loss_by_kernel(model: ModelConfig, dtype: torch.dtype, z_loss: float, device: torch.device, topology: Topology) -> bool:
    """Whether our own kernel computes the loss, on all ranks. Collective.

    Args:
        model: Model configuration.
        dtype: Activation type.
        z_loss: Weight of the z-loss.
        device: Device to run on.
        topology: All ranks.
    """
    formula = LossFormula(model.vocab_size, SINGLE, model.logit_softcap, z_loss)
    test = partial(smoke_test_loss, formula, dtype, TOKENS, device)
    return _kernel_works_everywhere(test, device, topology, "loss by PyTorch instead of our kernel")


def _kernel_works_everywhere(test: Callable[[], str | None], device: torch.device, topology: Topology, fallback: str) -> bool:
    """Whether every rank has a kernel, and its smoke test succeeds on all of them. Collective.

    If the kernel fails or is missing on one rank, no rank uses it, and the main rank logs the reason. If all ranks lack it, as
    CPUs do, nothing is logged.

    Args:
        test: Smoke test, which returns the reason why the kernel fails, or None.
        device: Device to run on.
        topology: All ranks.
        fallback: Description of the fallback, for the log.
    """
    has_kernel = has_kernels(device)
    if not any(gather_values(has_kernel, topology)):
        return False
    reason: str | None = MISSING
    if has_kernel:
        reason = test()
    summary = _summarize(reason, topology)
    if summary is not None and topology.is_main:
        LOG.info("%s: it %s", fallback, summary)
    return summary is None


def working_product(recipe: Fp8Recipe, device: torch.device, topology: Topology) -> LinearFunction | None:
    """Return the matrix product in FP8, None if training.fp8 is "none". Collective.

    Args:
        recipe: FP8 recipe (training.fp8).
        device: Device to run on.
        topology: All ranks.

    Raises:
        UserError: A rank lacks torchao, or its device does not support FP8. Raised on all ranks.
    """
    if recipe == "none":
        return None
    products: list[LinearFunction] = []
    on_all(lambda: products.append(fp8_product(recipe, device)), topology, context=f"training.fp8 {recipe} does not work: ")
    if topology.is_main and device.type == "cpu":
        LOG.info("training.fp8 %s is emulated on a CPU: it rounds as on a GPU, and is slower than bfloat16", recipe)
    return products[0]


def _summarize(reason: str | None, topology: Topology) -> str | None:
    """Name the ranks where a smoke test failed, with the first rank's reason; None if it failed nowhere. Collective.

    Args:
        reason: Reason why it failed on this rank, or None.
        topology: All ranks.
    """
    reasons = gather_values(reason, topology)
    ranks = [rank for rank, text in enumerate(reasons) if text is not None]
    if not ranks:
        return None
    return f"failed when {name_ranks(ranks)} tried it ({reasons[ranks[0]]})"
