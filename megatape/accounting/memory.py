"""Bytes that one rank holds at the peak of a training step, by part."""

from dataclasses import dataclass
from functools import cache
from math import prod

from torch import nn

from megatape.accounting.matrices import plan_matrices
from megatape.accounting.parameters import count_parameters, meta_model
from megatape.accounting.trace import activations, changed, count_once, num_chunks, run_pass, run_weights
from megatape.accounting.traffic import GRADIENT_BYTES, always_whole, element_bytes, elements
from megatape.accounting.zero3 import gathered
from megatape.attention.attend import check_forced_backend
from megatape.config import Config
from megatape.model.smoke_test import attention_needs
from megatape.model.trainable import freeze
from megatape.nn.loss import chunk_elements
from megatape.nn.parameters import settings
from megatape.optim.optimizer import is_whole
from megatape.registry import OPTIMIZERS
from megatape.zero.deepspeed_config import stage3_limits

FP8_BYTES = 4 + 4 + 1  # of each number that is rounded to FP8: scaled, cut to FP8's range, rounded


@dataclass(frozen=True)
class Memory:
    """Bytes by part, on the device and in host memory (offloading)."""

    device: dict[str, float]
    host: dict[str, float]

    @property
    def device_total(self) -> float:
        return sum(self.device.values())


@cache
def plan_memory(config: Config, world_size: int, on_gpu: bool) -> Memory:
    """The memory of a rank. on_gpu: with the attention of a GPU."""
    state = plan_state(config, world_size)
    host = dict(state.host)
    if config.training.activation_checkpointing == "offload":
        host["activations"] = offloaded_bytes(config, on_gpu)
    return Memory(state.device | plan_activations(config, on_gpu), host)


def plan_total(config: Config, world_size: int, on_gpu: bool) -> Memory:
    """Plan the same memory as `plan_memory`, but with activations as a single part, which takes half the time.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
        on_gpu: Whether to plan for the attention backend of a GPU.
    """
    state = plan_state(config, world_size)
    host = dict(state.host)
    if config.training.activation_checkpointing == "offload":
        host["activations"] = offloaded_bytes(config, on_gpu)
    kept = activations(config, on_gpu).total
    return Memory(state.device | {"activations": kept + _largest_temporary(config, on_gpu)}, host)


@cache
def plan_state(config: Config, world_size: int) -> Memory:
    """Plan the memory of a rank without activations: the part needed even with the shortest samples.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
    """
    zero = config.zero
    size = element_bytes(config)
    ranks = config.replicas(world_size)
    one = run_pass(config) if zero.stage == 3 else run_weights(config)
    parameters = list(one.model.parameters())
    weights: float = elements(parameters)
    if zero.stage == 3:
        whole = always_whole(parameters, config)
        padded = elements(parameters, ranks)
        weights = elements(whole) + padded / ranks
        if zero.hpz_ranks > 1:  # the second copy
            weights += (padded - elements(whole, ranks)) / zero.hpz_ranks
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    held = elements(trained)
    share = elements(trained, ranks) / ranks
    state = share if zero.stage else held
    device = {
        "weights": weights * size,
        "gradients": (share if zero.stage >= 2 else held) * GRADIENT_BYTES,
        # Stage 0 updates the weights themselves.
        "master weights": state * 4 if zero.stage else 0,
        "moments": _optimizer_state(config, trained, world_size),
    }
    if zero.stage in (1, 2):
        device["flattened gradients"] = share * GRADIENT_BYTES
    if config.optimizer.ema_decay:
        device["moving average"] = state * 4
    host: dict[str, float] = {}
    if config.checkpoint.background:
        host["copies for checkpoints"] = state * 4 + device["moments"] + device.get("moving average", 0)
    if zero.offload_optimizer:
        if zero.stage == 3:  # sums them in host memory; the others do so on the device
            host["gradients"] = device.pop("gradients")
        host |= {part: device.pop(part) for part in ("master weights", "moments", "moving average") if part in device}
        host["flattened gradients"] = device.pop("flattened gradients", share * GRADIENT_BYTES)
    if zero.offload_parameters:
        host["weights"] = device.pop("weights")
    if zero.stage == 3:
        device["gathered weights"] = gathered(one.events, ranks, stage3_limits(config)).live * size
    if zero.stage:  # gradients that wait to be reduced, and their copy in transit
        device["gradient buckets"] = 2 * min(zero.bucket_size, held) * GRADIENT_BYTES
    return Memory(device, host)


def checkpoint_bytes(config: Config) -> int:
    """The tensors of a checkpoint: float32 weights, and the optimizer's state of those that are trained.

    What a run with training.init_from freezes counts as left out, as if `init_from` held all of it.
    """
    model = meta_model(config.model)
    freeze(model, config.training.trainable, config.training.frozen)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held = count_parameters(config.model).total if config.training.init_from is None else elements(trained)
    average = elements(trained) if config.optimizer.ema_decay else 0
    return 4 * (held + average + sum(_state_elements(config, parameter) for parameter in trained))


def _optimizer_state(config: Config, trained: list[nn.Parameter], world_size: int) -> float:
    """Bytes on a rank: of weights' elements where their master weights are, of whole matrices as the rank has that has most."""
    entry = OPTIMIZERS[config.optimizer.kind]
    ranks = config.replicas(world_size)
    others = [parameter for parameter in trained if not is_whole(parameter, config.optimizer)]
    held = elements(others, ranks) / ranks if config.zero.stage else elements(others)
    return 4 * len(entry.state) * held + plan_matrices(config, world_size).state


def _state_elements(config: Config, parameter: nn.Parameter) -> int:
    """Elements of the optimizer's state for a whole parameter."""
    shape = settings(parameter).shape
    entry = OPTIMIZERS[config.optimizer.kind]
    if is_whole(parameter, config.optimizer):
        return sum(map(prod, entry.matrix_shapes(shape).values()))
    return len(entry.state) * prod(shape)


@count_once
def plan_activations(config: Config, on_gpu: bool) -> dict[str, float]:
    """Bytes by part that a micro-batch needs beside weights, gradients and optimizer. on_gpu: as `plan_memory` takes it.

    Raises UserError if the backend that training.attention forces cannot run on a GPU.
    """
    if on_gpu:
        check_forced_backend(attention_needs(config, "cuda")[0], config.training.attention, config.model.encoding)
    kept = activations(config, on_gpu).total
    content = activations(changed(config, "model", encoding="nope", scaling=None), on_gpu).total
    temporary = _largest_temporary(config, on_gpu)
    return {"activations": content, "position encoding": kept - content, "largest temporary": temporary}


def _largest_temporary(config: Config, on_gpu: bool) -> int:
    """Return the peak of temporary bytes in the backward pass and the loss."""
    return max(recomputed_bytes(config, on_gpu) + _rounded(config), _logits(config, on_gpu))


def offloaded_bytes(config: Config, on_gpu: bool) -> int:
    """Bytes of a micro-batch's streams that wait in host memory for the backward pass.

    With them counts what all blocks share and keep on the device, the first angles and the starts of documents: less than one
    block's stream.
    """
    on_device = changed(config, "training", activation_checkpointing="full")
    return activations(on_device, on_gpu).total - activations(config, on_gpu).total


def recomputed_bytes(config: Config, on_gpu: bool) -> int:
    """Bytes that the backward pass makes again at a time: all of a layer, or its parts that are not kept, of one chunk."""
    config = changed(config, "model", nope_every=None)  # the largest layer has positions
    whole, chunked = (
        activations(changed(config, "training", activation_checkpointing="none", chunk_tokens=tokens), on_gpu).layer
        for tokens in (None, config.training.chunk_tokens)
    )
    kept = 0 if config.training.recomputes_blocks else activations(config, on_gpu).layer
    return chunked - kept + (whole - chunked) // num_chunks(config)


def _rounded(config: Config) -> int:
    """Bytes that torchao uses at a time to round a matrix to FP8, unless that is compiled."""
    model = config.model
    training = config.training
    if training.fp8 == "none" or training.compile:
        return 0
    tokens = training.micro_batch_size * config.data.sequence_length // config.parallel.sample_replicas
    widths = (model.hidden_size, model.num_heads * model.head_dim, model.mlp_size)
    return FP8_BYTES * max(widths) * max(tokens, model.hidden_size)


def _logits(config: Config, on_gpu: bool) -> int:
    """Bytes of one chunk's logits, and of the output matrix's gradient while it is summed (nn/loss.py).

    On a GPU a kernel writes the gradient over them, and chunks are those of the largest one.
    """
    size = element_bytes(config)
    rows = -(-config.model.vocab_size // config.parallel.tp)
    tokens = config.training.micro_batch_size * config.data.sequence_length // config.parallel.sample_replicas
    tokens = min(tokens, max(1, chunk_elements(on_gpu) // rows))
    copies = size if on_gpu or size == 4 else size + 4 + size  # as computed, in float32, and as a gradient
    if config.model.logit_softcap is not None and not on_gpu:
        copies += 4 + 4  # before the soft-cap, and its slopes
    return tokens * rows * copies + rows * config.model.hidden_size * (4 + size)
