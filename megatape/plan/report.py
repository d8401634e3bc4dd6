"""The plan as text: what a run needs, and how it does on a given cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from megatape.config import ActivationCheckpointing, ClusterConfig, Config, parse_config
from megatape.errors import UserError
from megatape.model.accounting import count_parameters, count_trainable, forward_flops
from megatape.plan.gpus import Gpu, load_gpu
from megatape.plan.measured import MeasuredStep, nearest_step
from megatape.plan.memory import Memory, checkpoint_bytes, plan_memory
from megatape.plan.speed import ASSUMPTIONS, FP8_ASSUMPTION, Speed, links, plan_speed
from megatape.plan.traffic import plan_traffic
from megatape.tables import columns
from megatape.units import format_bytes

# Device memory beyond the model's: contexts of the driver and the libraries, and what the allocator cannot use.
CONTEXT, FRAGMENTATION = 1.5 * 2**30, 0.05

NO_CLUSTER = (
    "The file names no cluster: --nodes, --gpus-per-node and --gpu of `megatape plan` add memory, traffic and time on one."
)

Row = tuple[str, str]


def report(config: Config, measured: Path | None = None) -> str:
    """Sizes and costs of a run.

    With a cluster in the configuration also traffic, step time, and what to change if memory is short. Without a cluster the
    plan is for the fewest ranks that can run it: one tensor-parallel group.

    measured: results.jsonl of a benchmark, by which the step time is corrected.

    Raises UserError or FileNotFoundError if the ranks do not divide the batch, the GPU is unknown, or nothing was measured.
    """
    cluster = config.cluster
    if cluster is not None:
        step = None if measured is None else nearest_step(measured, config)
        return _on_cluster(config, cluster, load_gpu(cluster.gpu), step)
    if measured is not None:
        raise UserError("measured corrects the time of a step on a cluster: add `nodes`, `gpus_per_node` and `gpu`")
    world_size = config.parallel.tp
    config.accumulation(world_size)
    memory = plan_memory(config, world_size, on_gpu=False)
    return f"{columns([*_counts(config, world_size), *_memory(config, world_size, memory, 'rank')])}\n\n{NO_CLUSTER}"


def _on_cluster(config: Config, cluster: ClusterConfig, gpu: Gpu, step: MeasuredStep | None) -> str:
    world_size = cluster.world_size
    _check_nodes(config, cluster)
    config.accumulation(world_size)
    memory = plan_memory(config, world_size, on_gpu=True)
    need = needed(memory, gpu)
    speeds = [plan_speed(config, cluster, gpu, correction) for correction in (None, *([step.correction] if step else []))]
    rows = [
        ("cluster", f"{cluster.nodes} nodes x {cluster.gpus_per_node} {cluster.gpu}"),
        *_counts(config, world_size),
        *_memory(config, world_size, memory, "GPU"),
        ("  contexts and fragmentation", format_bytes(need - memory.device_total)),
        (
            "  needed of available",
            f"{format_bytes(need)} of {format_bytes(gpu.memory)}: {'fits' if need <= gpu.memory else 'DOES NOT FIT'}",
        ),
        *_sent(config, cluster),
        *_speed(config, speeds, step),
    ]
    advice = [] if need <= gpu.memory else ["", "to make it fit, one after another:", *_advice(config, cluster, gpu)]
    assumed = [*ASSUMPTIONS, *([FP8_ASSUMPTION] if config.training.fp8 != "none" else [])]
    return "\n".join([columns(rows), "", "assumed:", *(f"  {line}" for line in assumed), *advice])


def needed(memory: Memory, gpu: Gpu) -> float:
    """Bytes needed on the device, including those beyond the model's."""
    return memory.device_total + CONTEXT + FRAGMENTATION * gpu.memory


def _check_nodes(config: Config, cluster: ClusterConfig) -> None:
    tensor_size, node = config.parallel.tp, cluster.gpus_per_node
    if tensor_size % node and node % tensor_size:
        raise UserError(
            f"parallel.tp {tensor_size} and {node} GPUs per node: one must divide the other, for ranks to fill nodes evenly"
        )


def _counts(config: Config, world_size: int) -> list[Row]:
    model, training, length = config.model, config.training, config.data.sequence_length
    count, flops = count_parameters(model), forward_flops(model, length, training.num_shifted_groups)
    tokens = training.global_batch_size * length
    data_ranks, accumulated = config.data_ranks(world_size), config.accumulation(world_size)
    batch = f"{training.micro_batch_size} micro x {data_ranks} data-parallel ranks x {accumulated} accumulated"
    return [
        ("parameters", f"{count.total:,} = {count.total / 2**20:.2f} x 2^20"),
        ("  embedding and head", f"{count.embedding:,}"),
        ("  position encoding", f"{count.position:,}"),
        ("  trained", f"{count_trainable(model, training.trainable, training.frozen):,}"),
        ("forward FLOPs per sequence", f"{flops / 1e9:,.2f} G ({length} tokens)"),
        ("forward FLOPs per token", f"{flops / length / 1e6:,.2f} M"),
        ("global batch", f"{training.global_batch_size} = {batch}"),
        ("tokens per step", f"{tokens:,}"),
        ("tokens of the run", f"{tokens * training.steps:,} in {training.steps:,} steps"),
    ]


def _memory(config: Config, world_size: int, memory: Memory, holder: str) -> list[Row]:
    ranks = f"{config.data_ranks(world_size)} data-parallel x {config.parallel.tp} tensor-parallel ranks"
    shape = f"ZeRO stage {config.zero.stage}, {ranks}"
    return [
        (f"bytes per {holder}", f"{format_bytes(memory.device_total)} ({shape}, {config.training.arithmetic})"),
        *((f"  {part}", format_bytes(count)) for part, count in memory.device.items()),
        *((f"  in host memory: {part}", format_bytes(count)) for part, count in memory.host.items()),
        ("bytes of a checkpoint", format_bytes(checkpoint_bytes(config))),
    ]


def _sent(config: Config, cluster: ClusterConfig) -> list[Row]:
    traffic, split = plan_traffic(config, cluster.world_size), links(config, cluster)
    rows = [("bytes that a GPU sends in a step", "inside the node, to other nodes")]
    for group, sent in (("tensor", traffic.tensor), ("data", traffic.data)):
        inside, outside = split[group]
        rows.append((f"  {group}-parallel ranks", f"{format_bytes(inside)}, {format_bytes(outside)}"))
        rows += [(f"    {collective}", format_bytes(count)) for collective, count in sent.items()]
        if group == "tensor":
            rows.append(("    of these overlapped with computation", f"{traffic.overlapped:.0%}"))
    return rows


def _speed(config: Config, speeds: list[Speed], step: MeasuredStep | None) -> list[Row]:
    """speeds: as estimated, and, if a step was measured, as corrected by it."""
    speed = speeds[-1]
    (good, bad), (best, worst) = speed.seconds, speed.utilization
    tokens = config.training.global_batch_size * config.data.sequence_length
    return [
        ("FLOPs per step", f"{speed.model_flops:.4e} of the model, {speed.done_flops:.4e} done"),
        ("seconds per step", _range(speeds[0])),
        *([_compared(step), ("  corrected by it", _range(speed))] if step else []),
        ("MFU", f"{best:.0%} to {worst:.0%}"),
        ("tokens per day", f"{tokens / good * 86400:.3g} to {tokens / bad * 86400:.3g}"),
        ("days for the run", f"{config.training.steps * good / 86400:.3g} to {config.training.steps * bad / 86400:.3g}"),
    ]


def _range(speed: Speed) -> str:
    good, bad = speed.seconds
    return f"{good:,.3g} to {bad:,.3g}"


def _compared(step: MeasuredStep) -> Row:
    count, training = count_parameters(step.config.model).total, step.config.training
    shape = f"{count / 1e6:,.0f} M, {training.micro_batch_size} x {step.config.data.sequence_length}"
    error = step.estimated / step.seconds - 1
    return f"  measured on one {step.gpu.name}: {shape}", f"{step.seconds:.3g}, estimated {step.estimated:.3g} ({error:+.0%})"


def _advice(config: Config, cluster: ClusterConfig, gpu: Gpu) -> Iterator[str]:
    """Changes that save memory, cheapest first, each on top of the previous ones, until the run fits."""
    for setting, value in _savings(config, cluster):
        raw = config.model_dump()
        section, _, key = setting.partition(".")
        raw[section][key] = value
        try:
            config = parse_config(raw, "plan")
            config.accumulation(cluster.world_size)
        except ValueError:  # the ranks do not divide something
            continue
        need = needed(plan_memory(config, cluster.world_size, on_gpu=True), gpu)
        yield f"  --set {setting}={str(value).lower()}: {format_bytes(need)}{', fits' if need <= gpu.memory else ''}"
        if need <= gpu.memory:
            return
    yield "  it still does not fit: use more GPUs, or larger ones"


def _savings(config: Config, cluster: ClusterConfig) -> Iterator[tuple[str, object]]:
    if config.zero.stage < 3:
        yield "zero.stage", 3
    modes = get_args(ActivationCheckpointing)
    for mode in modes[modes.index(config.training.activation_checkpointing) + 1 :]:
        yield "training.activation_checkpointing", mode
    micro = config.training.micro_batch_size
    while micro > 1:
        micro //= 2
        yield "training.micro_batch_size", micro
    tensor_size = config.parallel.tp
    while tensor_size < cluster.gpus_per_node:
        tensor_size *= 2
        yield "parallel.tp", tensor_size
    if not config.zero.offload_optimizer:
        yield "zero.offload_optimizer", True
    if not config.zero.offload_parameters:
        yield "zero.offload_parameters", True
