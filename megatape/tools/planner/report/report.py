"""The plan as text: sizes of a run, and its speed and memory on a cluster."""

from dataclasses import replace
from pathlib import Path

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.traffic.node_traffic import spanning_warning
from megatape.config import Config
from megatape.errors import UserError, flag
from megatape.tools.planner.memory_requirements import memory_requirements
from megatape.tools.planner.planned_cluster import PlannedCluster, check_nodes
from megatape.tools.planner.report.failure_rows import FailureOptions, failure_rows
from megatape.tools.planner.report.resource_rows import Row, count_rows, memory_rows, offload_rows, sent_rows
from megatape.tools.planner.report.search_report import smallest_change_advice
from megatape.tools.planner.report.speed_rows import corrected_speed, speed_rows
from megatape.tools.planner.report.stages import stage_advice
from megatape.tools.planner.search.search import SEARCH_SECONDS
from megatape.tools.planner.search.search_space import SearchSpace
from megatape.tools.planner.step_time.measured import MeasuredStep, nearest_step
from megatape.tools.planner.step_time.offload import OFFLOAD_ASSUMPTION
from megatape.tools.planner.step_time.rates import ASSUMPTIONS, FP8_ASSUMPTION
from megatape.tools.planner.step_time.speed import RUN_ASSUMPTIONS
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_bytes, plural

NO_CLUSTER = (
    "The file names no cluster: --nodes, --gpus-per-node and --gpu of `megatape plan` add memory, traffic and time on one."
)


def report(
    config: Config,
    measured: Path | None = None,
    price: float | None = None,
    failures: FailureOptions | None = None,
) -> str:
    """Return a text about the sizes and costs of a run.

    With a cluster in the configuration, the report includes traffic, step time, GPU-hours, and what to change if another ZeRO
    stage is faster or memory is short. Without one, the plan is for the fewest possible ranks: those sharing one sample.

    Args:
        config: Configuration of the run.
        measured: results.jsonl of a benchmark, for correcting the step time.
        price: Price of a GPU-hour, in any currency.
        failures: Rate and costs of failures, None to leave them out.

    Raises:
        UserError: The ranks do not divide the batch, the GPU is unknown, nothing was measured, or failures leave no time.
        FileNotFoundError: `measured` or the GPU's file is missing.
    """
    cluster = config.cluster
    if cluster is not None:
        step = None if measured is None else nearest_step(measured, config)
        return _report_on_cluster(config, PlannedCluster.load(cluster), step, price, failures)

    if measured is not None:
        raise UserError(
            f"{flag('measured')} corrects the time of a step on a cluster: add {flag('nodes')}, {flag('gpus_per_node')} and "
            f"{flag('gpu')}"
        )
    if price is not None:
        raise UserError(
            f"{flag('price')} needs a cluster, whose GPU-hours it pays for: add {flag('nodes')}, {flag('gpus_per_node')} and "
            f"{flag('gpu')}"
        )
    layout = TrainingLayout.from_config(config, config.parallel.sample_ranks)
    memory = plan_memory(layout, on_gpu=False)
    rows = [*count_rows(config, layout), *memory_rows(config, layout, memory, "rank")]
    if failures is not None:
        rows += failure_rows(config, failures, None)
    return f"{columns(rows)}\n\n{NO_CLUSTER}"


def _report_on_cluster(
    config: Config,
    cluster: PlannedCluster,
    step: MeasuredStep | None,
    price: float | None,
    failures: FailureOptions | None,
) -> str:
    """Return a text about a run on its cluster, which is given without a correction."""
    machines = cluster.machines
    check_nodes(config.parallel, machines.gpus_per_node)
    layout = TrainingLayout.from_config(config, machines.world_size)
    memory = plan_memory(layout, on_gpu=True)
    requirements = memory_requirements(memory, cluster)
    overhead = requirements.gpu.bytes - memory.device_total
    rows: list[Row] = [
        ("cluster", f"{plural(machines.nodes, 'node')} x {machines.gpus_per_node} {machines.gpu}"),
        *count_rows(config, layout),
        *memory_rows(config, layout, memory, "GPU"),
        ("  contexts and fragmentation", format_bytes(overhead)),
    ]
    for device, requirement in requirements.by_device.items():
        rows.append((f"memory needed {device}", requirement.describe()))
    rows += sent_rows(layout, machines.gpus_per_node)
    rows += offload_rows(layout, cluster.gpu)
    rows += speed_rows(config, layout, cluster, step, price)
    if failures is not None:
        rows += failure_rows(config, failures, corrected_speed(layout, cluster, step).seconds.middle)

    lines = [columns(rows), "", "assumed:"]
    lines += [f"  {assumption}" for assumption in _assumptions(config)]
    warning = spanning_warning(layout, machines.gpus_per_node)
    if warning is not None:
        lines += ["", f"warning: {warning}"]
    lines += _advice(config, cluster, requirements.fits, step)
    return "\n".join(lines)


def _assumptions(config: Config) -> list[str]:
    """Return the assumptions of a run's estimate."""
    assumptions = [*ASSUMPTIONS, *RUN_ASSUMPTIONS]
    if config.training.fp8 != "none":
        assumptions.append(FP8_ASSUMPTION)
    if config.zero.offload_optimizer or config.zero.offload_parameters:
        assumptions.append(OFFLOAD_ASSUMPTION)
    return assumptions


def _advice(config: Config, cluster: PlannedCluster, fits: bool, step: MeasuredStep | None) -> list[str]:
    """Return lines with changes that make a run fit, or faster."""
    if not fits:
        return ["", *smallest_change_advice(SearchSpace(config, cluster), SEARCH_SECONDS)]
    if step is not None:
        cluster = replace(cluster, correction=step.correction)
    return stage_advice(config, cluster)
