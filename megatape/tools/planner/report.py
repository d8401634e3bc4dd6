"""The plan as text: what a run needs, and how it does on a given cluster."""

from collections.abc import Sequence
from pathlib import Path

from megatape.accounting.counts import count_parameters, count_trainable, forward_flops
from megatape.accounting.gpus import Gpu, load_gpu
from megatape.accounting.matrices import plan_matrices
from megatape.accounting.memory import Memory, checkpoint_bytes, plan_memory
from megatape.accounting.needs import MARGIN, check_cluster, memory_needs
from megatape.accounting.traffic import plan_traffic, spanning_warning
from megatape.config import ClusterConfig, Config
from megatape.errors import UserError
from megatape.tools.planner.operations import ASSUMPTIONS, FP8_ASSUMPTION
from megatape.tools.planner.search import SEARCH_SECONDS, Place, Setting, Space
from megatape.tools.planner.speed import (
    OFFLOAD_ASSUMPTION,
    RUN_ASSUMPTIONS,
    TOLERANCE,
    MeasuredStep,
    links,
    nearest_step,
    plan_offload,
    plan_speed,
)
from megatape.tools.planner.stages import stage_advice
from megatape.utils.tables import columns
from megatape.utils.units import format_bytes, format_count, format_range, plural

NO_CLUSTER = (
    "The file names no cluster: --nodes, --gpus-per-node and --gpu of `megatape plan` add memory, traffic and time on one."
)

Row = tuple[str, str]


def report(config: Config, measured: Path | None = None, price: float | None = None) -> str:
    """Report the sizes and costs of a run.

    If the configuration has a cluster, the report includes traffic, step time, GPU-hours, and what to change if another ZeRO
    stage is faster or memory is short. Without a cluster the plan is for the fewest ranks that can run it: those of one sample.

    Args:
        config: Configuration of the run.
        measured: results.jsonl of a benchmark, for correcting the step time.
        price: Price of a GPU-hour, in any currency.

    Raises:
        UserError: The ranks do not divide the batch, the GPU is unknown, or nothing was measured.
        FileNotFoundError: `measured` or the file of the GPU is missing.
    """
    cluster = config.cluster
    if cluster is not None:
        step = None if measured is None else nearest_step(measured, config)
        return _on_cluster(config, cluster, load_gpu(cluster.gpu), step, price)
    if measured is not None:
        raise UserError("measured corrects the time of a step on a cluster: add `nodes`, `gpus_per_node` and `gpu`")
    if price is not None:
        raise UserError("price needs a cluster, whose GPU-hours it pays for: add `nodes`, `gpus_per_node` and `gpu`")
    world_size = config.parallel.sample_ranks
    config.accumulation(world_size)
    memory = plan_memory(config, world_size, on_gpu=False)
    return f"{columns([*_counts(config, world_size), *_memory(config, world_size, memory, 'rank')])}\n\n{NO_CLUSTER}"


def _on_cluster(config: Config, cluster: ClusterConfig, gpu: Gpu, step: MeasuredStep | None, price: float | None) -> str:
    world_size = cluster.world_size
    check_cluster(config, cluster)
    memory = plan_memory(config, world_size, on_gpu=True)
    needs = memory_needs(memory, cluster, gpu)
    rows = [
        ("cluster", f"{plural(cluster.nodes, 'node')} x {cluster.gpus_per_node} {cluster.gpu}"),
        *_counts(config, world_size),
        *_memory(config, world_size, memory, "GPU"),
        ("  contexts and fragmentation", format_bytes(needs["of a GPU"].bytes - memory.device_total)),
        *((f"memory needed {where}", str(need)) for where, need in needs.items()),
        *_sent(config, cluster),
        *_offloaded(config, cluster, gpu),
        *_speed(config, cluster, gpu, step, price),
    ]
    fits = all(need.fits for need in needs.values())
    if fits:
        correction = None
        if step is not None:
            correction = step.correction
        advice = stage_advice(config, cluster, gpu, correction)
    else:
        advice = ["", *_advice(Space(config, cluster, gpu, limit=SEARCH_SECONDS))]
    offloads = config.zero.offload_optimizer or config.zero.offload_parameters
    conditions = {FP8_ASSUMPTION: config.training.fp8 != "none", OFFLOAD_ASSUMPTION: offloads}
    assumed = [*ASSUMPTIONS, *RUN_ASSUMPTIONS, *(line for line, applies in conditions.items() if applies)]
    warning = spanning_warning(config, world_size, cluster.gpus_per_node)
    warnings = ["", f"warning: {warning}"] if warning else []
    return "\n".join([columns(rows), "", "assumed:", *(f"  {line}" for line in assumed), *warnings, *advice])


def _counts(config: Config, world_size: int) -> list[Row]:
    model = config.model
    training = config.training
    length = config.data.sequence_length
    count = count_parameters(model)
    flops = forward_flops(model, length, training.num_shifted_groups)
    data_ranks = config.data_ranks(world_size)
    accumulated = config.accumulation(world_size)
    batch = f"{training.micro_batch_size} micro x {plural(data_ranks, 'data-parallel rank')} x {accumulated} accumulated"
    return [
        ("parameters", _exact(count.total)),
        ("  embedding and head", _exact(count.embedding)),
        ("  position encoding", _exact(count.position)),
        ("  trained", _exact(count_trainable(model, training.trainable, training.frozen))),
        ("forward FLOPs", f"{_flops(flops)} per sequence of {length:,} tokens, {_flops(flops / length)} per token"),
        ("global batch", f"{training.global_batch_size} = {batch}"),
        ("tokens per step", _exact(config.step_tokens)),
        *[(f"  until {format_count(stage.tokens)} tokens", plural(stage.samples, "sample")) for stage in training.batch_warmup],
        ("tokens of the run", f"{format_count(config.tokens)} in {plural(training.steps, 'step')}"),
    ]


def _exact(count: int) -> str:
    return f"{format_count(count)} ({count:,})" if count >= 1000 else str(count)


def _flops(flops: float) -> str:
    return format_count(flops, [f" {prefix}FLOP" for prefix in ("", *"kMGTPEZ")])


def _memory(config: Config, world_size: int, memory: Memory, holder: str) -> list[Row]:
    axes = {axis: size for axis, size in config.parallel.axes.items() if size > 1 or axis == "tensor"}
    sizes = {"data": config.data_ranks(world_size)} | axes
    ranks = f"{' x '.join(f'{size} {axis}-parallel' for axis, size in sizes.items())} ranks"
    shape = f"ZeRO stage {config.zero.stage}, {ranks}"
    return [
        (f"bytes per {holder}", f"{format_bytes(memory.device_total)} ({shape}, {config.training.arithmetic})"),
        *((f"  {part}", format_bytes(count)) for part, count in memory.device.items()),
        *((f"  in host memory: {part}", format_bytes(count)) for part, count in memory.host.items()),
        ("bytes of a checkpoint", format_bytes(checkpoint_bytes(config))),
    ]


def _sent(config: Config, cluster: ClusterConfig) -> list[Row]:
    traffic = plan_traffic(config, cluster.world_size)
    split = links(config, cluster)
    rows = [("bytes that a GPU sends in a step", "inside the node, to other nodes")]
    replicas = ["data-", *(f"{axis}-" for axis in ("context", "sequence") if config.parallel.axes[axis] > 1)]
    data = f"{', '.join(replicas[:-1])} and {replicas[-1]}parallel ranks, ZeRO" if replicas[1:] else "data-parallel ranks"
    groups = {axis: f"{axis}-parallel ranks" for axis in ("tensor", "sequence", "context")}
    groups |= {"data": data, "hpz": "ranks with a second copy of the weights, ZeRO", "all": "all ranks, whole matrices"}
    for group, ranks in groups.items():
        sent, (inside, outside) = traffic.sent[group], split[group]
        if not sent and group in ("sequence", "context", "hpz", "all"):
            continue
        rows.append((f"  {ranks}", f"{format_bytes(inside)}, {format_bytes(outside)}"))
        rows += [(f"    {collective}", format_bytes(count)) for collective, count in sent.items()]
        if group in ("tensor", "context"):
            rows.append(("    of these overlapped with computation", f"{traffic.overlapped[group]:.0%}"))
    return rows


def _offloaded(config: Config, cluster: ClusterConfig, gpu: Gpu) -> list[Row]:
    offload = plan_offload(config, cluster.world_size)
    (_, low), (_, high) = (offload.seconds(gpu, case) for case in (1, 0))
    rows = [
        ("bytes between a GPU and its host in a step", format_bytes(offload.beside + offload.after)),
        ("  seconds that it waits for the host", format_range(low, high)),
    ]
    return rows if offload.beside + offload.after else []


def _speed(config: Config, cluster: ClusterConfig, gpu: Gpu, step: MeasuredStep | None, price: float | None) -> list[Row]:
    estimated = plan_speed(config, cluster, gpu)
    speed = plan_speed(config, cluster, gpu, step.correction) if step else estimated
    (low, high), (worst, best) = speed.seconds, speed.utilization
    updates = plan_matrices(config, cluster.world_size).flops
    hours = config.tokens / config.step_tokens / 3600
    slow, fast = (config.step_tokens / seconds / cluster.world_size for seconds in (high, low))
    time, unit = (hours, "hours") if hours * low < 48 else (hours / 24, "days")
    return [
        ("FLOPs per step", f"{_flops(speed.model_flops)} of the model, {_flops(speed.done_flops)} done"),
        *([("  of the GPU that updates most whole matrices", _flops(updates))] if updates else []),
        ("seconds per step", format_range(*estimated.seconds)),
        *([_compared(step), ("  corrected by it", format_range(low, high))] if step else []),
        ("MFU", f"{worst:.0%} to {best:.0%}"),
        ("tokens/s per GPU", f"{format_count(slow)} to {format_count(fast)}"),
        (f"{unit} for the run", format_range(time * low, time * high)),
        *_cost(config, cluster, (low, high), price),
    ]


def _cost(config: Config, cluster: ClusterConfig, seconds: tuple[float, float], price: float | None) -> list[Row]:
    """Return the rows on GPU-hours and cost of a run whose steps take `seconds`, (low, high)."""
    steps = config.tokens / config.step_tokens  # steps with a full batch
    low, high = (steps * each * cluster.world_size / 3600 for each in seconds)
    rows = [("GPU-hours for the run", format_range(low, high))]
    if price is not None:
        rows.append((f"  cost at {price:g} a GPU-hour", format_range(price * low, price * high)))
    return rows


def _compared(step: MeasuredStep) -> Row:
    count = count_parameters(step.config.model).total
    training = step.config.training
    shape = f"{count / 1e6:,.0f} M, {training.micro_batch_size} x {step.config.data.sequence_length}"
    error = step.estimated / step.seconds - 1
    return f"  measured on one {step.gpu.name}: {shape}", f"{step.seconds:.3g}, estimated {step.estimated:.3g} ({error:+.0%})"


def _advice(space: Space) -> list[str]:
    """Return the smallest change that makes a run fit, as lines of a report."""
    place = space.smallest_change()
    candidate = None
    if place is not None:
        candidate = space.candidate(place)
    if place is None or candidate is None:
        if space.timed_out:
            return ["the search for a change that makes it fit ran out of time: use more nodes or larger GPUs"]
        return ["nothing that the settings can save makes it fit: use more nodes, or GPUs and nodes with more memory"]
    needs = ", ".join(f"{format_bytes(need.bytes)} {where}" for where, need in candidate.needs.items())
    return ["the smallest change that makes it fit:", f"  {_options(space.changes(place))}: {needs}"]


def _options(changes: Setting) -> str:
    """Changes of a configuration on the command line."""
    return " ".join(f"--set {key}={str(value).lower()}" for key, value in changes.items()) or "the settings of the file"


def search_report(
    config: Config,
    measured: Path | None = None,
    price: float | None = None,
    most: int = 5,
    limit: float | None = SEARCH_SECONDS,
) -> str:
    """Report the fastest settings of a run that fit its cluster, and how to change the file's own if they do not fit.

    Args:
        config: Configuration with a cluster.
        measured: results.jsonl of a benchmark, for correcting the step time.
        price: Price of a GPU-hour, in any currency.
        most: Maximum number of settings to print.
        limit: Time limit of the search in seconds, None for no limit.

    Raises:
        UserError: No cluster is stated, or nothing was measured.
    """
    cluster = config.cluster
    if cluster is None:
        raise UserError("search needs a cluster: add `nodes`, `gpus_per_node` and `gpu`, or a cluster section to the file")
    gpu = load_gpu(cluster.gpu)
    correction = None
    if measured is not None:
        correction = nearest_step(measured, config).correction
    own = Space(config, cluster, gpu, correction).own
    own_fits = own is not None and all(need.fits for need in own.needs.values())
    share = limit
    if limit is not None and own is not None and not own_fits:
        share = limit / 2  # the other half is for the smallest change
    space = Space(config, cluster, gpu, correction, share)
    found, advised = space.preferred()
    lines = []
    if advised is not None:
        lines += [_settings(space, found[:most]), "", *_advised(space, advised, len(found))]
        lines += _advised_cost(space, advised, price)
    if space.timed_out:
        lines.append(f"the search ended at its limit of {share:g} seconds: there may be faster settings")
    if own is None:
        lines.append("the file's own settings do not divide evenly: megatape plan without --search says what to change")
    elif own_fits:
        lines.append(f"the file's own: {format_range(*own.speed)} seconds a step, {format_bytes(own.of_gpu.bytes)}: fits")
    else:
        lines += [f"the file's own need {own.of_gpu}", *_advice(Space(config, cluster, gpu, correction, share))]
    return "\n".join(lines)


def _settings(space: Space, places: Sequence[Place]) -> str:
    """Return a table of settings with their speed and memory."""
    names = [key.rpartition(".")[2] for ladder in space.ladders for key in ladder[0]]
    header = [*names, "seconds per step", "memory of a GPU", "of a node's host"]
    rows = []
    for place in places:
        candidate = space.candidate(place)
        assert candidate is not None
        settings = [ladder[at] for ladder, at in zip(space.ladders, place, strict=True)]
        values = [str(value).lower() for setting in settings for value in setting.values()]
        host = candidate.needs.get("of a node's host")
        memory = [format_bytes(candidate.of_gpu.bytes), "none"]
        if host is not None:
            memory[1] = format_bytes(host.bytes)
        rows.append([*values, format_range(*candidate.speed), *memory])
    return columns(rows, header)


def _advised(space: Space, place: Place, num_equal: int) -> list[str]:
    """Return the options of the advised settings, and the reason for the advice."""
    reason = f"the simplest of {num_equal} settings within {TOLERANCE:.0%} of the fastest: the estimate cannot tell them apart"
    if num_equal == 1:
        reason = f"the search found no other setting within {TOLERANCE:.0%} of it"
    return [f"advised: {_options(space.changes(place))}", f"  {reason}; it leaves {MARGIN:.0%} of the memory free"]


def _advised_cost(space: Space, place: Place, price: float | None) -> list[str]:
    """Return the GPU-hours of the advised settings, and their price."""
    candidate = space.candidate(place)
    assert candidate is not None
    rows = _cost(candidate.config, candidate.cluster, candidate.speed, price)
    return [f"  {name.strip()}: {value}" for name, value in rows]
