"""Comparison of the ZeRO stages for a run: memory, exchanges and time of each."""

from dataclasses import dataclass
from math import prod, sqrt

from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory import plan_memory
from megatape.accounting.trace import run_pass
from megatape.accounting.traffic import plan_traffic
from megatape.accounting.workload import Workload
from megatape.config import ClusterConfig, Config, with_settings
from megatape.errors import UserError
from megatape.tools.planner.memory_requirements import Need, memory_needs
from megatape.tools.planner.speed import plan_speed
from megatape.utils.tables import columns
from megatape.utils.units import format_bytes, format_range

STAGES = (0, 1, 2, 3)
FASTER = 0.99  # Another stage is advised if its steps take at most this share of the time.


@dataclass(frozen=True)
class StagePlan:
    """A run at one stage of ZeRO.

    Attributes:
        stage: Stage of ZeRO.
        needs: Memory by device, as `memory_needs` returns it.
        sent: Bytes that a rank sends to other data-parallel ranks per step.
        seconds: Seconds of a step, (low, high).
    """

    stage: int
    needs: dict[str, Need]
    sent: int
    seconds: tuple[float, float]

    @property
    def fits(self) -> bool:
        """Whether all memory suffices, if only just."""
        return all(need.fits for need in self.needs.values())

    @property
    def fits_with_margin(self) -> bool:
        """Whether all memory suffices, with the margin of `--search`."""
        return all(need.fits_with_margin for need in self.needs.values())

    @property
    def middle(self) -> float:
        """Geometric mean of the range of seconds."""
        return sqrt(prod(self.seconds))


def plan_stages(config: Config, cluster: ClusterConfig, gpu: Gpu, correction: float | None = None) -> list[StagePlan]:
    """Plan a run at each stage that its other settings allow, in the order of stages.

    Args:
        config: Configuration of the run.
        cluster: Machines of the run.
        gpu: Their GPU.
        correction: See `plan_speed`.
    """
    plans = []
    for stage in STAGES:
        at_stage = config
        if stage != config.zero.stage:
            try:
                at_stage = with_settings(config, {"zero.stage": stage})
            except UserError:
                continue
        layout = TrainingLayout.from_config(at_stage, cluster.world_size)
        needs = memory_needs(plan_memory(layout, on_gpu=True), cluster, gpu)
        sent = plan_traffic(layout).sent["data"].total()
        seconds = plan_speed(layout, cluster, gpu, correction).seconds
        plans.append(StagePlan(stage, needs, sent, seconds))
    return plans


def stage_advice(config: Config, cluster: ClusterConfig, gpu: Gpu, correction: float | None = None) -> list[str]:
    """Compare the stages of ZeRO, and advise the fastest one that fits if it is not the run's.

    Args:
        config: Configuration of a run that fits.
        cluster: Machines of the run.
        gpu: Their GPU.
        correction: See `plan_speed`.

    Returns:
        Lines of a report, empty if the other settings allow only one stage.
    """
    plans = plan_stages(config, cluster, gpu, correction)
    if len(plans) < 2:
        return []
    rows = []
    for plan in plans:
        name = f"stage {plan.stage}"
        if plan.stage == config.zero.stage:
            name += " (the file's)"
        rows.append([name, format_range(*plan.seconds), format_bytes(plan.sent), str(plan.needs["of a GPU"])])
    header = ["ZeRO", "seconds per step", "sent between data-parallel ranks", "memory needed of a GPU"]
    return ["", columns(rows, header), "", *_advise(config, cluster, plans)]


def _advise(config: Config, cluster: ClusterConfig, plans: list[StagePlan]) -> list[str]:
    """Return the advice below the table of stages."""
    own = next(plan for plan in plans if plan.stage == config.zero.stage)
    fastest = min((plan for plan in plans if plan.fits_with_margin or plan is own), key=lambda plan: plan.middle)
    if fastest.middle > FASTER * own.middle:
        return [f"no other stage that fits is faster than stage {own.stage}"]
    share = fastest.middle / own.middle
    advice = (
        f"stage {fastest.stage} is the fastest that fits (--set zero.stage={fastest.stage}): its steps take {share:.0%} of the "
        f"time of stage {own.stage}"
    )
    lines = [advice]
    if own.stage == 3:
        passes = config.accumulation(cluster.world_size)
        hooks = len(run_pass(Workload.from_config(config)).events)
        lines.append(f"  in a step stage 3 also waits for the device after each of {passes} backward passes, and runs")
        lines.append(f"  {passes * hooks:,} hooks of modules in Python: {hooks} a micro-batch")
    return lines
