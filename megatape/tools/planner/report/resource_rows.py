"""Rows of the planner's report about sizes, memory, traffic and offloading."""

from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.memory_parts import Memory
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic
from megatape.accounting.whole_model.checkpoint_size import checkpoint_bytes
from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.parameters import count_parameters, count_trainable
from megatape.config import Config, ParallelConfig
from megatape.tools.planner.step_time.cases import Case
from megatape.tools.planner.step_time.links import sent_by_link
from megatape.tools.planner.step_time.offload import plan_offload
from megatape.utils.text.units import format_bytes, format_count, format_range, plural

# Name and value of a row.
Row = tuple[str, str]

FLOP_UNITS = [f" {prefix}FLOP" for prefix in ("", *"kMGTPEZ")]


def count_rows(config: Config, layout: TrainingLayout) -> list[Row]:
    """Return the rows on parameters, FLOPs and batches."""
    model = config.model
    training = config.training
    length = config.data.sequence_length
    count = count_parameters(model)
    num_trained = count_trainable(model, training.trainable, training.frozen)
    flops = forward_flops(model, length, training.num_shifted_groups)
    data_ranks = plural(layout.num_data_ranks, "data-parallel rank")
    batch = f"{training.micro_batch_size} micro x {data_ranks} x {layout.num_micro_batches} accumulated"
    rows = [
        ("parameters", _exact(count.total)),
        ("  embedding and head", _exact(count.embedding)),
        ("  position encoding", _exact(count.position)),
        ("  trained", _exact(num_trained)),
        ("forward FLOPs", f"{format_flops(flops)} per sequence of {length:,} tokens, {format_flops(flops / length)} per token"),
        ("global batch", f"{training.global_batch_size} = {batch}"),
        ("tokens per step", _exact(config.step_tokens)),
    ]
    for stage in training.batch_warmup:
        rows.append((f"  until {format_count(stage.tokens)} tokens", plural(stage.samples, "sample")))
    rows.append(("tokens of the run", f"{format_count(config.tokens)} in {plural(training.steps, 'step')}"))
    return rows


def memory_rows(config: Config, layout: TrainingLayout, memory: Memory, holder: str) -> list[Row]:
    """Return the rows on memory and checkpoint size.

    Args:
        config: Configuration of the run.
        layout: Layout of the run.
        memory: A rank's memory.
        holder: Word for a rank, such as "GPU".
    """
    sizes = {"data": layout.num_data_ranks}
    for axis, size in config.parallel.axes.items():
        if size > 1 or axis == "tensor":
            sizes[axis] = size
    ranks = " x ".join(f"{size} {axis}-parallel" for axis, size in sizes.items())
    division = f"ZeRO stage {config.zero.stage}, {ranks} ranks, {config.training.arithmetic}"
    rows = [(f"bytes per {holder}", f"{format_bytes(memory.device_total)} ({division})")]
    for part, count in memory.device.items():
        rows.append((f"  {part.value}", format_bytes(count)))
    for part, count in memory.host.items():
        rows.append((f"  in host memory: {part.value}", format_bytes(count)))
    rows.append(("bytes of a checkpoint", format_bytes(checkpoint_bytes(config.model, config.training, config.optimizer))))
    return rows


def sent_rows(layout: TrainingLayout, gpus_per_node: int) -> list[Row]:
    """Return the rows on bytes between GPUs."""
    traffic = plan_traffic(layout)
    bytes_by_link = sent_by_link(layout, gpus_per_node)
    groups = {
        RankGroup.TENSOR: "tensor-parallel ranks",
        RankGroup.SEQUENCE: "sequence-parallel ranks",
        RankGroup.CONTEXT: "context-parallel ranks",
        RankGroup.REPLICAS: _describe_replicas(layout.workload.parallel),
        RankGroup.SECOND_COPY: "ranks with a second copy of the weights, ZeRO",
        RankGroup.ALL: "all ranks, whole matrices",
    }
    rows = [("bytes that a GPU sends in a step", "inside the node, to other nodes")]
    for group, description in groups.items():
        sent = traffic.sent[group]
        is_optional = group not in (RankGroup.TENSOR, RankGroup.REPLICAS)
        if is_optional and not sent:
            continue
        on_links = bytes_by_link[group]
        rows.append((f"  {description}", f"{format_bytes(on_links.inside)}, {format_bytes(on_links.outside)}"))
        for collective, count in sent.items():
            rows.append((f"    {collective}", format_bytes(count)))
        if group in (RankGroup.TENSOR, RankGroup.CONTEXT):
            rows.append(("    of these overlapped with computation", f"{traffic.overlapped[group]:.0%}"))
    return rows


def _describe_replicas(parallel: ParallelConfig) -> str:
    """Name the ranks training the same weights, such as "data- and context-parallel ranks, ZeRO"."""
    axes = ["data-"]
    for axis in ("context", "sequence"):
        if parallel.axes[axis] > 1:
            axes.append(f"{axis}-")
    if len(axes) == 1:
        return "data-parallel ranks"
    *first, last = axes
    return f"{', '.join(first)} and {last}parallel ranks, ZeRO"


def offload_rows(layout: TrainingLayout, gpu: Gpu) -> list[Row]:
    """Return the rows on bytes between a GPU and its host, empty without offloading."""
    offload = plan_offload(layout)
    num_bytes = offload.overlapped_bytes + offload.exposed_bytes
    if not num_bytes:
        return []
    high = offload.seconds(gpu, Case.BAD).exposed
    low = offload.seconds(gpu, Case.GOOD).exposed
    return [
        ("bytes between a GPU and its host in a step", format_bytes(num_bytes)),
        ("  seconds that it waits for the host", format_range(low, high)),
    ]


def _exact(count: int) -> str:
    """Format a count with a unit and all digits."""
    if count < 1000:
        return str(count)
    return f"{format_count(count)} ({count:,})"


def format_flops(flops: float) -> str:
    """Format FLOPs with a unit."""
    return format_count(flops, FLOP_UNITS)
