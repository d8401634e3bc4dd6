"""Compares memory, exchanges and time of the ZeRO stages for a run."""

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.shapes.trace import trace_micro_batch
from megatape.config import Config, with_settings
from megatape.errors import UserError
from megatape.tools.planner.candidate import Candidate
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.step_time.speed import TOLERANCE
from megatape.utils.text.tables import columns
from megatape.utils.text.units import format_bytes, format_range

STAGES = (0, 1, 2, 3)


def plan_stages(config: Config, cluster: PlannedCluster) -> list[Candidate]:
    """Return a candidate for each ZeRO stage that the run's other settings allow."""
    plans = []
    for stage in STAGES:
        try:
            at_stage = config
            if stage != config.zero.stage:
                at_stage = with_settings(config, {"zero.stage": stage})
        except UserError:
            # Another setting excludes the stage.
            continue
        layout = TrainingLayout.from_config(at_stage, cluster.machines.world_size)
        plans.append(Candidate(layout, cluster))
    return plans


def stage_advice(config: Config, cluster: PlannedCluster) -> list[str]:
    """Compare the ZeRO stages, and advise the fastest one that fits if the estimate can tell it from the run's.

    Args:
        config: Configuration of a run that fits.
        cluster: Cluster of the run.

    Returns:
        Report lines, none if the other settings allow only one stage.
    """
    plans = plan_stages(config, cluster)
    if len(plans) < 2:
        return []
    rows = []
    for plan in plans:
        name = f"stage {plan.stage}"
        if plan.stage == config.zero.stage:
            name += " (the file's)"
        needed = plan.requirements.gpu.describe()
        rows.append([name, format_range(*plan.seconds), format_bytes(plan.data_bytes), needed])
    header = ["ZeRO", "seconds per step", "sent between data-parallel ranks", "memory needed of a GPU"]
    return ["", columns(rows, header), "", *_advise(plans, config.zero.stage)]


def _advise(plans: list[Candidate], present_stage: int) -> list[str]:
    """Return the advice below the table of stages."""
    present = next(plan for plan in plans if plan.stage == present_stage)
    possible = [plan for plan in plans if plan.requirements.fits_with_margin or plan is present]
    fastest = min(possible, key=lambda plan: plan.seconds.middle)
    if fastest is present:
        return [f"no other stage that fits is faster than stage {present_stage}"]
    if present.seconds.middle <= (1 + TOLERANCE) * fastest.seconds.middle:
        reason = f"steps within {TOLERANCE:.0%} of stage {fastest.stage}'s, and the estimate cannot tell them apart"
        return [f"no other stage that fits is clearly faster: stage {present_stage} has {reason}"]
    share = fastest.seconds.middle / present.seconds.middle
    advice = (
        f"stage {fastest.stage} is the fastest that fits (--set zero.stage={fastest.stage}): its steps take {share:.0%} of the "
        f"time of stage {present_stage}"
    )
    lines = [advice]
    if present_stage == 3:
        passes = present.layout.num_micro_batches
        hooks = len(trace_micro_batch(present.layout.workload).events)
        lines.append(f"  in a step stage 3 also waits for the device after each of {passes} backward passes, and runs")
        lines.append(f"  {passes * hooks:,} hooks of modules in Python: {hooks} per micro-batch")
    return lines
