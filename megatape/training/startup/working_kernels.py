"""Finds out which attention backends and kernels work on all ranks, before a run uses them."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch

from megatape.attention.attend import Backends, backends_by_priority, check_forced_backend, get_backend, select_backend
from megatape.attention.backend import AttentionRequirements
from megatape.config import Fp8Recipe, ModelConfig
from megatape.distributed.exchange import gather_values, on_all
from megatape.distributed.mesh import SINGLE
from megatape.distributed.topology import Topology, name_ranks
from megatape.encodings import encoding_of
from megatape.errors import UserError
from megatape.model.smoke_test import BackendTrial, smoke_test_backend, smoke_test_loss, smoke_test_rotation, smoke_test_update
from megatape.model.smoke_test_child import smoke_test_in_child
from megatape.nn.fp8 import fp8_product
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.loss import LossFormula
from megatape.nn.product import Product
from megatape.registry import AUTO

LOG = logging.getLogger(__name__)

# Maximum number of tokens of the sample on which a backend or kernel is tested: two blocks of queries.
TOKENS = 256

# Reason why a rank cannot use our kernels, if other ranks can
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

    If a backend fails on one rank, no rank uses it, and the main rank logs the reason in one line.

    Args:
        requirements: Requirements of the layers, the most demanding ones first.
        forced: Name of the backend to use (training.attention), or AUTO.
        model: Configuration of the model.
        num_tokens: Number of tokens in a sample. Backends are tested on at most TOKENS.
        device: Device of this rank.
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
    faults: dict[str, str] = {}
    unsupported = set(requirements)
    for name in backends_by_priority(forced, most_demanding):
        backend = get_backend(name)
        supported = [layer for layer in requirements if backend.unsupported_reason(layer) is None]
        if not unsupported or not supported:
            continue
        fault = ""
        if device.type == "cuda" and (name == forced or backend.is_preferred_for(most_demanding)):
            # Test it in a child process of one rank per node, before it can harm the other ranks.
            own_fault = None
            if topology.local_rank == 0:
                own_fault = smoke_test_in_child(name, supported, trial)
            fault = _describe_ranks(own_fault, topology)
        if not fault:
            fault = _describe_ranks(smoke_test_backend(name, supported, trial), topology)
        if fault:
            faults[name] = fault
        else:
            working.append(name)
            unsupported -= set(supported)

    described = "; ".join(f"{name}: it {fault}" for name, fault in faults.items())
    if unsupported:
        raise UserError(f"no attention backend works here: {described}")
    if forced in faults:
        able = ", ".join(working)
        raise UserError(f"training.attention is {forced}, but it {faults[forced]}: choose {AUTO}, or one of {able}")
    if faults and topology.is_main:
        LOG.info("attention by %s instead of %s", select_backend(most_demanding, tuple(working)), described)
    return tuple(working)


def rotates_by_kernel(
    model: ModelConfig, dtype: torch.dtype, num_tokens: int, device: torch.device, topology: Topology
) -> bool:
    """Whether our own kernels rotate queries and keys before PyTorch's attention, on all ranks. Collective.

    Args:
        model: Configuration of the model.
        dtype: Type of the activations.
        num_tokens: Number of tokens in a sample. Kernels are tested on at most TOKENS.
        device: Device of this rank.
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
        model: Configuration of the model.
        dtype: Type of the activations.
        tensor_size: Number of tensor-parallel ranks.
        num_tokens: Number of tokens in a sample. Kernels are tested on at most TOKENS.
        device: Device of this rank.
        topology: All ranks.
    """
    tokens = min(num_tokens, TOKENS)
    test = partial(smoke_test_update, model, dtype, tokens, device, num_tensor_ranks=tensor_size)
    return _kernel_works_everywhere(test, device, topology, "position update by PyTorch instead of our kernel")


def loss_by_kernel(model: ModelConfig, dtype: torch.dtype, z_loss: float, device: torch.device, topology: Topology) -> bool:
    """Whether our own kernel computes the loss, on all ranks. Collective.

    Args:
        model: Configuration of the model.
        dtype: Type of the activations.
        z_loss: Weight of the z-loss.
        device: Device of this rank.
        topology: All ranks.
    """
    formula = LossFormula(model.vocab_size, SINGLE, model.logit_softcap, z_loss)
    test = partial(smoke_test_loss, formula, dtype, TOKENS, device)
    return _kernel_works_everywhere(test, device, topology, "loss by PyTorch instead of our kernel")


def _kernel_works_everywhere(test: Callable[[], str | None], device: torch.device, topology: Topology, fallback: str) -> bool:
    """Whether every rank has a kernel, and its smoke test succeeds on all of them. Collective.

    If the kernel fails on one rank or is missing there, no rank uses it, and the main rank logs the reason. If all ranks lack
    it, as CPUs do, nothing is logged.

    Args:
        test: Smoke test, which returns the reason why the kernel fails, or None.
        device: Device of this rank.
        topology: All ranks.
        fallback: Description of what is used instead, for the log.
    """
    has_kernel = has_kernels(device)
    if not any(gather_values(has_kernel, topology)):
        return False
    reason: str | None = MISSING
    if has_kernel:
        reason = test()
    description = _describe_ranks(reason, topology)
    if description and topology.is_main:
        LOG.info("%s: it %s", fallback, description)
    return not description


def working_product(recipe: Fp8Recipe, device: torch.device, topology: Topology) -> Product | None:
    """Return the matrix product in FP8, or None without FP8. Collective.

    Args:
        recipe: Recipe of training.fp8.
        device: Device of this rank.
        topology: All ranks.

    Raises:
        UserError: A rank lacks torchao, or its device does not multiply in FP8. Raised on all ranks.
    """
    if recipe == "none":
        return None
    products: list[Product] = []
    on_all(lambda: products.append(fp8_product(recipe, device)), topology, context=f"training.fp8 {recipe} does not work: ")
    if topology.is_main and device.type == "cpu":
        LOG.info("training.fp8 %s is emulated on a CPU: it rounds as on a GPU, and is slower than bfloat16", recipe)
    return products[0]


def _describe_ranks(fault: str | None, topology: Topology) -> str:
    """Return a description of the ranks with a fault, and of the first rank's fault; "" for none. Collective.

    Args:
        fault: Fault of this rank, or None.
        topology: All ranks.
    """
    faults = gather_values(fault, topology)
    ranks = [rank for rank, text in enumerate(faults) if text]
    if not ranks:
        return ""
    return f"failed when {name_ranks(ranks)} tried it ({faults[ranks[0]]})"
