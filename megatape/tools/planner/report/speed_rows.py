"""Rows of the planner's report about FLOPs, time and cost."""

from dataclasses import replace

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.sharding.whole_matrices import plan_matrices
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import Config
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.report.resource_rows import Row, format_flops
from megatape.tools.planner.step_time.cases import Range
from megatape.tools.planner.step_time.measured import MeasuredStep
from megatape.tools.planner.step_time.speed import Speed, plan_speed
from megatape.utils.text.units import format_count, format_range

SECONDS_PER_HOUR = 3600
# Number of hours above which a duration is printed in days.
MAX_HOURS = 48


def corrected_speed(layout: TrainingLayout, cluster: PlannedCluster, step: MeasuredStep | None) -> Speed:
    """Return the estimated speed, corrected by a measured step.

    Args:
        layout: Layout of the run.
        cluster: Cluster of the run.
        step: Measured step, None without one.
    """
    if step is not None:
        cluster = replace(cluster, correction=step.correction)
    return plan_speed(layout, cluster)


def speed_rows(
    config: Config,
    layout: TrainingLayout,
    cluster: PlannedCluster,
    step: MeasuredStep | None,
    price: float | None,
) -> list[Row]:
    """Return the rows on FLOPs, time and cost.

    Args:
        config: Configuration of the run.
        layout: Layout of the run.
        cluster: Cluster of the run.
        step: Measured step, for correcting the step time.
        price: Price of a GPU-hour.
    """
    estimated = plan_speed(layout, cluster)
    speed = corrected_speed(layout, cluster, step)

    rows = [("FLOPs per step", f"{format_flops(speed.model_flops)} of the model, {format_flops(speed.hardware_flops)} done")]
    matrix_flops = plan_matrices(layout).flops
    if matrix_flops:
        rows.append(("  of the GPU that updates most whole matrices", format_flops(matrix_flops)))
    rows.append(("seconds per step", format_range(*estimated.seconds)))
    if step is not None:
        rows.append(_measured_row(step))
        rows.append(("  corrected by it", format_range(*speed.seconds)))
    worst, best = speed.utilization
    rows.append(("MFU", f"{worst:.0%} to {best:.0%}"))
    rows.append(_throughput_row(layout, speed.seconds))
    rows.append(_duration_row(config.tokens, layout, speed.seconds))
    rows += cost_rows(config.tokens, layout, speed.seconds, price)
    return rows


def _throughput_row(layout: TrainingLayout, seconds: Range) -> Row:
    """Return the row on tokens per second, given the seconds per step."""
    gpu_tokens = layout.step_tokens / layout.world_size
    return "tokens/s per GPU", f"{format_count(gpu_tokens / seconds.high)} to {format_count(gpu_tokens / seconds.low)}"


def _duration_row(tokens: int, layout: TrainingLayout, seconds: Range) -> Row:
    """Return the row on the duration of a run of this number of tokens, given the seconds per step."""
    full_steps = _full_steps(tokens, layout)
    shortest = full_steps * seconds.low / SECONDS_PER_HOUR
    longest = full_steps * seconds.high / SECONDS_PER_HOUR
    if shortest < MAX_HOURS:
        return "hours for the run", format_range(shortest, longest)
    return "days for the run", format_range(shortest / 24, longest / 24)


def cost_rows(tokens: int, layout: TrainingLayout, seconds: Range, price: float | None) -> list[Row]:
    """Return the rows on GPU-hours and their price.

    Args:
        tokens: Tokens in the whole run.
        layout: Layout of the run.
        seconds: Seconds per step.
        price: Price of a GPU-hour.
    """
    low, high = gpu_hours(tokens, layout, seconds)
    rows = [("GPU-hours for the run", format_range(low, high))]
    if price is not None:
        rows.append((f"  cost at {price:g} per GPU-hour", format_range(price * low, price * high)))
    return rows


def gpu_hours(tokens: int, layout: TrainingLayout, seconds: Range) -> Range:
    """Return the GPU-hours of a run.

    Args:
        tokens: Tokens in the whole run.
        layout: Layout of the run.
        seconds: Seconds per step.
    """
    gpu_steps = _full_steps(tokens, layout) * layout.world_size
    hours = [gpu_steps * step_seconds / SECONDS_PER_HOUR for step_seconds in seconds]
    return Range(*hours)


def _full_steps(tokens: int, layout: TrainingLayout) -> float:
    """Return how many full batches have this number of tokens."""
    return tokens / layout.step_tokens


def _measured_row(step: MeasuredStep) -> Row:
    """Return the row comparing a measured step with its estimate."""
    count = count_parameters(step.config.model).total
    shape = f"{count / 1e6:,.0f} M, {step.config.training.micro_batch_size} x {step.config.data.sequence_length}"
    error = step.estimated / step.seconds - 1
    return f"  measured on one {step.gpu.name}: {shape}", f"{step.seconds:.3g}, estimated {step.estimated:.3g} ({error:+.0%})"
