"""The time of an optimizer step on a cluster: a range computed from FLOPs and bytes, with its assumptions stated."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from megatape.config import Config
from megatape.model.accounting import attention_flops, forward_flops
from megatape.model.encodings import encoding_of
from megatape.plan.gpus import Gpu
from megatape.plan.memory import Memory
from megatape.plan.trace import PLAIN, activations
from megatape.plan.traffic import Traffic, leaving_node

# Shares of the data sheet's rates that busy GPUs reach, in the bad and in the good case.
MATRIX_EFFICIENCY = (0.50, 0.75)
ATTENTION_EFFICIENCY = (0.30, 0.55)
LINK_EFFICIENCY = (0.5, 0.8)
MEMORY_EFFICIENCY = (0.6, 0.85)
# Forward and backward pass of products and of attention, in forward passes over all scores. Fused attention skips the half of
# them that is masked; its backward pass multiplies five times, and its forward pass twice.
PRODUCT_PASSES, ATTENTION_PASSES, RECOMPUTED_ATTENTION = 3, 1.75, 0.5
# Times that unfused operations read or write the activations, forward and backward.
ACTIVATION_PASSES, RECOMPUTED_PASSES = 6, 2
# Bytes that rotation by a position tensor that layers move, its update and their gradients read and write for each of its
# numbers in a layer: by plain operations, and in one pass each.
POSITION_BYTES = (346, 78)
FLOAT32_SLOWDOWN = 16  # of plain float32 products against bfloat16 ones, on A100 and H100

ASSUMPTIONS = (
    f"attention at {ATTENTION_EFFICIENCY[0]:.0%} to {ATTENTION_EFFICIENCY[1]:.0%} of the peak, without the masked half",
    f"matrix products at {MATRIX_EFFICIENCY[0]:.0%} to {MATRIX_EFFICIENCY[1]:.0%} of the peak",
    f"links at {LINK_EFFICIENCY[0]:.0%} to {LINK_EFFICIENCY[1]:.0%} of the peak",
    f"device memory at {MEMORY_EFFICIENCY[0]:.0%} to {MEMORY_EFFICIENCY[1]:.0%} of the peak",
    f"activations cross device memory {ACTIVATION_PASSES} times, those that are computed again {RECOMPUTED_PASSES} more times",
    "exchanges of ZeRO, and tensor-parallel ones that are begun ahead, run beside computation in the good case",
    f"a position tensor that layers move crosses it at {POSITION_BYTES[0]} to {POSITION_BYTES[1]} bytes a number and layer",
    "no waiting for data, checkpoints, stragglers or host memory; FLOPs and MFU count all N x N scores",
)
FP8_ASSUMPTION = "FP8 products, with the scaling of their matrices, as fast as bfloat16's; --measured has their real time"


@dataclass(frozen=True)
class Speed:
    """Seconds and model FLOPs utilization of one optimizer step, (good, bad) each, and its FLOPs over all ranks.

    model_flops: three times the forward pass. done_flops: the same with what activation checkpointing recomputes."""

    seconds: tuple[float, float]
    utilization: tuple[float, float]
    model_flops: int
    done_flops: int


def plan_speed(
    config: Config,
    world_size: int,
    gpus_per_node: int,
    gpu: Gpu,
    traffic: Traffic,
    memory: Memory,
    correction: float | None = None,
) -> Speed:
    """The speed of a step on `world_size` GPUs, `gpus_per_node` on each node.

    correction: measured seconds over `middle`; the range that is left is that of the links."""
    model, training, length = config.model, config.training, config.data.sequence_length
    forward = forward_flops(model, length, training.num_shifted_groups) * training.global_batch_size
    model_flops = 3 * forward
    done_flops = model_flops + _again(config) * (forward - _head(config))
    own = device_seconds(config, world_size, gpu, memory)
    if correction is not None:
        between = middle(own)
        own = (Own(*(correction * part for part in between)),) * 2

    def seconds(case: int) -> float:
        compute, streaming = own[case]
        tensor, data = (
            sum(link_seconds(inside, outside, gpu)) / LINK_EFFICIENCY[case]
            for inside, outside in links(config, world_size, gpus_per_node, traffic).values()
        )
        if not case:
            return tensor + streaming + compute + data
        return (1 - traffic.beside) * tensor + streaming + max(compute, data + traffic.beside * tensor)

    good, bad = seconds(1), seconds(0)
    best, worst = (model_flops / world_size / gpu.bfloat16_flops / time for time in (good, bad))
    return Speed((good, bad), (best, worst), model_flops, done_flops)


class Own(NamedTuple):
    """Seconds that a GPU takes for its own work in a step: products and attention, and bytes that cross its memory."""

    compute: float
    streaming: float


def device_seconds(config: Config, world_size: int, gpu: Gpu, memory: Memory) -> tuple[Own, Own]:
    """A step without exchanges between GPUs, (bad, good). memory: as planned."""
    training, again = config.training, _again(config)
    batch, length, groups = training.global_batch_size, config.data.sequence_length, training.num_shifted_groups
    attention = attention_flops(config.model, length, groups) * batch
    once = forward_flops(config.model, length, groups) * batch - attention
    products = PRODUCT_PASSES * once + again * (once - _head(config))
    fused = (ATTENTION_PASSES + again * RECOMPUTED_ATTENTION) * attention
    peak = world_size * gpu.bfloat16_flops / (1 if training.precision == "bfloat16" else FLOAT32_SLOWDOWN)
    bad, good = (
        Own(
            products / (peak * MATRIX_EFFICIENCY[case]) + fused / (peak * ATTENTION_EFFICIENCY[case]),
            _streamed(config, world_size, memory, POSITION_BYTES[case]) / (gpu.memory_bandwidth * MEMORY_EFFICIENCY[case]),
        )
        for case in (0, 1)
    )
    return bad, good


def middle(own: tuple[Own, Own]) -> Own:
    """The estimate between the bad and the good case: the geometric mean of each part."""
    return Own(*(math.sqrt(bad * good) for bad, good in zip(*own, strict=True)))


def _again(config: Config) -> bool:
    """Whether the backward pass computes products and attention again."""
    return config.training.activation_checkpointing == "full"


def _head(config: Config) -> int:
    """FLOPs of the output matrix in the forward pass of a step; it is not recomputed."""
    tokens = config.data.sequence_length * config.training.global_batch_size
    return 2 * config.model.hidden_size * config.model.vocab_size * tokens


def _streamed(config: Config, world_size: int, memory: Memory, position_bytes: int) -> float:
    """Bytes that cross a GPU's own memory in a step outside matrix products: in the optimizer and in unfused operations.

    position_bytes: for each number of a position tensor that layers move."""
    model, micro_batches = config.model, config.accumulation(world_size)
    state = sum(memory.device.get(part, 0.0) for part in ("master weights", "moments"))
    encoding = encoding_of(model)
    counted = "nope" if encoding.carries_state else model.encoding
    made = activations(config, counted, "none", PLAIN).total
    again = made - activations(config, counted, config.training.activation_checkpointing, PLAIN).total
    tokens = config.training.micro_batch_size * config.data.sequence_length
    numbers = tokens * (model.num_layers - 1) * model.num_kv_heads * encoding.state_width / config.parallel.tp
    return (
        2 * state
        + memory.device.get("gradients", 0.0)
        + micro_batches * (ACTIVATION_PASSES * made + RECOMPUTED_PASSES * again + position_bytes * numbers)
    )


def links(config: Config, world_size: int, gpus_per_node: int, traffic: Traffic) -> dict[str, tuple[float, float]]:
    """Bytes that a rank sends in a step, by group: (inside its node, to other nodes)."""
    tensor_size = config.parallel.tp
    per_node = {"tensor": min(tensor_size, gpus_per_node), "data": max(1, gpus_per_node // tensor_size)}
    sizes = {"tensor": tensor_size, "data": config.data_ranks(world_size)}
    result = {}
    for name, sent in (("tensor", traffic.tensor), ("data", traffic.data)):
        outside = leaving_node(sent, sizes[name], per_node[name])
        result[name] = (sent.total() - outside, outside)
    return result


def link_seconds(inside: float, outside: float, gpu: Gpu) -> tuple[float, float]:
    """Seconds at the data sheet's rates: (inside the node, to other nodes)."""
    return inside / gpu.node_bandwidth, outside / gpu.network_bandwidth
