"""Builds the parts of a run from its configuration and ranks: loader, engine with kernels that work everywhere, evaluator."""

import logging

import torch

from megatape.attention.attend import Backends, backends_by_priority, check_forced_backend, get_backend, select_backend
from megatape.config import Config, Fp8Recipe
from megatape.data.training.loader import Loader
from megatape.data.training.mixture import RunData
from megatape.distributed.exchange import exchange, on_all
from megatape.distributed.mesh import Axis, Mesh
from megatape.distributed.topology import Topology, name_ranks
from megatape.encodings import encoding_of
from megatape.errors import UserError
from megatape.model.build import build_model
from megatape.model.division_check import check_division
from megatape.model.smoke_test import attention_needs, backend_failure, failure_in_child, loss_failure, update_failure
from megatape.model.trainable import check_trainable
from megatape.model.transformer import Transformer
from megatape.nn.fp8 import fp8_product
from megatape.nn.kernels.launch import has_kernels
from megatape.nn.linear import Product
from megatape.registry import AUTO
from megatape.training.evaluation import Evaluator
from megatape.zero.distributed import own_device
from megatape.zero.engine import Engine

LOG = logging.getLogger(__name__)

# Maximum number of tokens of the sample on which a backend or kernel is tested: two blocks of queries.
TOKENS = 256


def build_loader(config: Config, data: RunData, axis: Axis) -> Loader:
    """Build the reader of this rank's training samples.

    Args:
        config: Configuration of the run.
        data: Data opened by this rank.
        axis: Ranks that read different samples.

    Raises:
        ConfigError: The number of ranks does not divide the global batch.
    """
    config.accumulation(axis.size * config.parallel.sample_ranks)
    warmup = {}
    for stage in config.data.length_warmup:
        warmup[stage.length] = -(-stage.tokens // config.data.sequence_length)
    return Loader(
        data.train,
        batches=config.batches,
        micro_batch_size=config.training.micro_batch_size,
        rank=axis.rank,
        world_size=axis.size,
        positions=encoding_of(config.model).positions(config.data.random_offset),
        warmup=warmup,
    )


def build_evaluator(config: Config, data: RunData, engine: Engine) -> Evaluator:
    """Build the evaluator of a run.

    Args:
        config: Configuration of the run.
        data: Data opened by this rank.
        engine: Engine of the run.
    """
    encoding = encoding_of(config.model)
    return Evaluator(
        engine,
        data,
        positions=encoding.positions(config.data.random_offset),
        micro_batch_size=config.training.micro_batch_size,
        seed=config.training.seed,
        views_positions=encoding.carries_state,
    )


def build_engine(config: Config, topology: Topology, mesh: Mesh) -> tuple[Engine, Backends]:
    """Build model and optimizer under DeepSpeed, and select the attention backends of the model. Collective.

    Args:
        config: Configuration of the run.
        topology: All ranks.
        mesh: Mesh of the ranks.

    Raises:
        UserError: The model cannot be built or computed here as configured. Raised on all ranks.
    """
    device = own_device()
    training = config.training
    check_division(config, mesh, topology, device)
    backends = working_backends(config, device, topology)
    fp8 = working_product(training.fp8, device, topology)
    update_by_kernel = updates_by_kernel(config, device, topology)
    by_kernel = loss_by_kernel(config, device, topology)

    def build(axis: Axis) -> Transformer:
        model = build_model(
            config.model,
            axis,
            sequence_axis=mesh["sequence"],
            context_axis=mesh["context"],
            trainable=training.trainable,
            frozen=training.frozen,
            fp8=fp8,
            backends=backends,
            update_by_kernel=update_by_kernel,
            z_loss=training.z_loss,
            loss_by_kernel=by_kernel,
            num_shifted_groups=training.num_shifted_groups,
            activation_checkpointing=training.activation_checkpointing,
            chunk_tokens=training.chunk_tokens,
            compiler="inductor" if training.compile else None,
        )
        check_trainable(model, training.trainable, training.frozen)
        return model

    return Engine(config, topology, mesh, build), backends


def working_backends(config: Config, device: torch.device, topology: Topology) -> Backends:
    """Return the first backends that work on all ranks and together support all layers, in order of preference. Collective.

    If a backend fails on one rank, no rank uses it, and the main rank logs the reason in one line.

    Args:
        config: Configuration of the run.
        device: Device of this rank.
        topology: All ranks.

    Raises:
        UserError: training.attention forces a backend that does not support the model or fails, or no backend works. Raised on
            all ranks.
    """
    needs = attention_needs(config, device.type)
    forced = config.training.attention
    encoding = encoding_of(config.model)
    check_forced_backend(needs[0], forced, config.model.encoding)
    groups = config.model.num_heads // config.model.num_kv_heads
    tokens = min(config.data.sequence_length, TOKENS)
    width = encoding.state_width if encoding.moves_state else 0
    working: list[str] = []
    failed: dict[str, str] = {}
    unsupported = set(needs)
    for name in backends_by_priority(forced, needs[0]):
        supported = [need for need in needs if get_backend(name).unsupported_reason(need) is None]
        if not unsupported or not supported:
            continue
        trial = (name, supported, groups, width, tokens, device)
        fault = ""
        # On one rank of each node, before it can harm the others.
        if device.type == "cuda" and (name == forced or get_backend(name).is_preferred_for(needs[0])):
            fault = _describe_ranks("" if topology.local_rank else failure_in_child(*trial), topology)
        if fault := fault or _describe_ranks(backend_failure(*trial), topology):
            failed[name] = fault
        else:
            working.append(name)
            unsupported -= set(supported)
    faults = "; ".join(f"{name}: it {fault}" for name, fault in failed.items())
    if unsupported:
        raise UserError(f"no attention backend works here: {faults}")
    if forced in failed:
        able = ", ".join(working)
        raise UserError(f"training.attention is {forced}, but it {failed[forced]}: choose {AUTO}, or one of {able}")
    if failed and topology.is_main:
        LOG.info("attention by %s instead of %s", select_backend(needs[0], tuple(working)), faults)
    return tuple(working)


def updates_by_kernel(config: Config, device: torch.device, topology: Topology) -> bool:
    """Whether a run updates the position state by our own kernels, if they exist for the device. Collective."""
    fault = update_failure(config, min(config.data.sequence_length, TOKENS), device)
    works = _kernel_works_everywhere(fault, topology, "position update by PyTorch instead of our kernel")
    return works and has_kernels(device)


def loss_by_kernel(config: Config, device: torch.device, topology: Topology) -> bool:
    """Whether a run computes its loss by our own kernel, if it exists for the device. Collective."""
    fault = loss_failure(config, TOKENS, device)
    return _kernel_works_everywhere(fault, topology, "loss by PyTorch instead of our kernel")


def _kernel_works_everywhere(fault: str, topology: Topology, instead: str) -> bool:
    """Whether a kernel works on every rank. Collective.

    If the kernel fails on one rank, no rank uses it, and the main rank logs the reason.

    Args:
        fault: Fault of this rank, or "".
        topology: All ranks.
        instead: Description of the fallback, for the log.
    """
    fault = _describe_ranks(fault, topology)
    if fault and topology.is_main:
        LOG.info("%s: it %s", instead, fault)
    return not fault


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


def _describe_ranks(fault: str, topology: Topology) -> str:
    """Return a description of the ranks with a fault, and of the first rank's fault; "" for none. Collective.

    Args:
        fault: Fault of this rank, or "".
        topology: All ranks.
    """
    faults = exchange(fault, topology)
    ranks = [rank for rank, text in enumerate(faults) if text]
    if not ranks:
        return ""
    return f"failed when {name_ranks(ranks)} tried it ({faults[ranks[0]]})"
