"""The time of an optimizer step on a cluster: a range computed from FLOPs and bytes, with its assumptions stated."""

from dataclasses import dataclass

from megatape.config import Config
from megatape.model.accounting import forward_flops
from megatape.plan.gpus import Gpu
from megatape.plan.memory import Memory
from megatape.plan.trace import activations
from megatape.plan.traffic import Traffic, leaving_node

# Shares of the data sheet's rates that busy GPUs reach, in the bad and in the good case.
MATRIX_EFFICIENCY = (0.40, 0.60)
LINK_EFFICIENCY = (0.5, 0.8)
MEMORY_EFFICIENCY = (0.6, 0.85)
# Times that unfused operations read or write the activations, forward and backward.
ACTIVATION_PASSES, RECOMPUTED_PASSES = 6, 2
FLOAT32_SLOWDOWN = 16  # of plain float32 products against bfloat16 ones, on A100 and H100

ASSUMPTIONS = (
    f"matrix products at {MATRIX_EFFICIENCY[0]:.0%} to {MATRIX_EFFICIENCY[1]:.0%} of the peak",
    f"links at {LINK_EFFICIENCY[0]:.0%} to {LINK_EFFICIENCY[1]:.0%} of the peak",
    f"device memory at {MEMORY_EFFICIENCY[0]:.0%} to {MEMORY_EFFICIENCY[1]:.0%} of the peak",
    f"saved activations cross device memory {ACTIVATION_PASSES} times, and {RECOMPUTED_PASSES} more times if recomputed",
    "exchanges of ZeRO, and tensor-parallel ones that are begun ahead, run beside computation in the good case",
    "no waiting for data, checkpoints, stragglers or host memory; attention computes all N x N scores, as the FLOPs count them",
)


@dataclass(frozen=True)
class Speed:
    """Seconds and model FLOPs utilization of one optimizer step, (good, bad) each, and its FLOPs over all ranks.

    model_flops: three times the forward pass. done_flops: the same with what activation checkpointing recomputes."""

    seconds: tuple[float, float]
    utilization: tuple[float, float]
    model_flops: int
    done_flops: int


def plan_speed(config: Config, world_size: int, gpus_per_node: int, gpu: Gpu, traffic: Traffic, memory: Memory) -> Speed:
    """The speed of a step on `world_size` GPUs, `gpus_per_node` on each node."""
    model, training, length = config.model, config.training, config.data.sequence_length
    forward = forward_flops(model, length, training.num_shifted_groups) * training.global_batch_size
    recomputed = forward - 2 * model.hidden_size * model.vocab_size * length * training.global_batch_size  # all but the head
    model_flops = 3 * forward
    done_flops = model_flops + (recomputed if training.activation_checkpointing else 0)
    peak = gpu.bfloat16_flops / (1 if training.precision == "bfloat16" else FLOAT32_SLOWDOWN)
    streamed = _streamed(config, world_size, memory)

    def seconds(case: int) -> float:
        compute = done_flops / world_size / (peak * MATRIX_EFFICIENCY[case])
        tensor, data = (
            sum(link_seconds(inside, outside, gpu)) / LINK_EFFICIENCY[case]
            for inside, outside in links(config, world_size, gpus_per_node, traffic).values()
        )
        streaming = streamed / (gpu.memory_bandwidth * MEMORY_EFFICIENCY[case])
        if not case:
            return tensor + streaming + compute + data
        return (1 - traffic.beside) * tensor + streaming + max(compute, data + traffic.beside * tensor)

    good, bad = seconds(1), seconds(0)
    best, worst = (model_flops / world_size / gpu.bfloat16_flops / time for time in (good, bad))
    return Speed((good, bad), (best, worst), model_flops, done_flops)


def _streamed(config: Config, world_size: int, memory: Memory) -> float:
    """Bytes that cross a GPU's own memory in a step outside matrix products: in the optimizer and in unfused operations."""
    state = sum(memory.device.get(part, 0.0) for part in ("master weights", "moments"))
    passes = ACTIVATION_PASSES + RECOMPUTED_PASSES * config.training.activation_checkpointing
    kept = activations(config, config.model.encoding, checkpointing=False).total
    return 2 * state + memory.device.get("gradients", 0.0) + passes * config.accumulation(world_size) * kept


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
