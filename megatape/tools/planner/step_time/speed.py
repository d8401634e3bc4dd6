"""Time of an optimizer step on a cluster: a range computed from FLOPs and bytes."""

from dataclasses import dataclass

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic
from megatape.accounting.whole_model.flops import forward_flops
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.step_time.cases import ByCase, Case, Range
from megatape.tools.planner.step_time.device import device_seconds
from megatape.tools.planner.step_time.efficiency import DeviceTime, middle
from megatape.tools.planner.step_time.host import HOOK_SECONDS, LAUNCH_SECONDS, host_work
from megatape.tools.planner.step_time.links import sent_by_link
from megatape.tools.planner.step_time.offload import plan_offload
from megatape.tools.planner.step_time.rates import LINK_EFFICIENCY, OTHER_GPUS, rates_of

# Estimates that differ by less than this share do not tell which step is faster: similar published runs scatter as much around
# the estimate.
TOLERANCE = 0.10

# Assumptions about whole runs, in addition to those in rates.py.
RUN_ASSUMPTIONS = (
    (
        f"GPUs training together take {OTHER_GPUS.sustained_slowdown.good} to {OTHER_GPUS.sustained_slowdown.bad} times as "
        "long as one alone, except A100s"
    ),
    (
        f"{LAUNCH_SECONDS.good * 1e6:.0f} to {LAUNCH_SECONDS.bad * 1e6:.0f} microseconds to launch a kernel, while the GPU "
        "computes"
    ),
    (
        f"{HOOK_SECONDS.good * 1e6:.0f} to {HOOK_SECONDS.bad * 1e6:.0f} microseconds to run a hook of stage 3, while the GPU "
        "computes"
    ),
)


@dataclass(frozen=True)
class Speed:
    """Speed of an optimizer step.

    Attributes:
        seconds: Seconds per step.
        utilization: Model FLOPs utilization (MFU), from 0 to 1.
        model_flops: FLOPs of all ranks, three times the forward pass.
        hardware_flops: Model FLOPs and those recomputed by activation checkpointing.
    """

    seconds: Range
    utilization: Range
    model_flops: int
    hardware_flops: int


def plan_speed(layout: TrainingLayout, cluster: PlannedCluster) -> Speed:
    """Return the estimated speed of an optimizer step."""
    workload = layout.workload
    model = workload.model
    sample_flops = forward_flops(model, workload.sequence_length, workload.num_shifted_groups)
    step_forward_flops = sample_flops * layout.step_samples
    model_flops = 3 * step_forward_flops
    hardware_flops = model_flops
    if workload.recomputes_blocks:
        head_flops = 2 * model.hidden_size * model.vocab_size * layout.step_tokens
        hardware_flops += step_forward_flops - head_flops

    step = _Step(layout, cluster)
    seconds = Range(step.good_seconds(), step.bad_seconds())
    gpu_flops = model_flops / layout.world_size
    peak = cluster.gpu.bfloat16_flops
    worst = gpu_flops / peak / seconds.high
    best = gpu_flops / peak / seconds.low
    return Speed(seconds, Range(worst, best), model_flops, hardware_flops)


class _Step:
    """Parts of an optimizer step and their overlap."""

    def __init__(self, layout: TrainingLayout, cluster: PlannedCluster) -> None:
        gpu = cluster.gpu
        correction = cluster.correction
        self._gpu = gpu
        self._links = sent_by_link(layout, cluster.machines.gpus_per_node)
        self._overlapped = plan_traffic(layout).overlapped
        self._offload = plan_offload(layout)
        self._host = host_work(layout)
        self._times = device_seconds(layout, gpu)
        if correction is not None:
            estimate = middle(self._times)
            corrected = DeviceTime(correction * estimate.compute_bound, correction * estimate.memory_bound)
            self._times = ByCase(corrected, corrected)
        self._is_measured = correction is not None
        if layout.world_size > 1:
            self._slowdown = rates_of(gpu).sustained_slowdown
        else:
            self._slowdown = ByCase(1.0, 1.0)

    def bad_seconds(self) -> float:
        """Return the step time if only launches overlap."""
        case = Case.BAD
        computing = self._slowdown.of(case) * sum(self._times.of(case))
        exchanges = sum(self._exchange_seconds(case).values())
        offload = self._offload.seconds(self._gpu, case)
        return self._with_host(computing + exchanges + offload.overlapped + offload.exposed, case)

    def good_seconds(self) -> float:
        """Return the step time with all possible overlap."""
        case = Case.GOOD
        times = self._times.of(case)
        compute_bound = self._slowdown.of(case) * times.compute_bound
        memory_bound = self._slowdown.of(case) * times.memory_bound
        offload = self._offload.seconds(self._gpu, case)

        overlapped_exchanges = 0.0
        exposed_exchanges = 0.0
        for group, exchange in self._exchange_seconds(case).items():
            share = self._overlapped_share(group)
            overlapped_exchanges += share * exchange
            exposed_exchanges += (1 - share) * exchange

        at_once = max(compute_bound, overlapped_exchanges, offload.overlapped)
        on_device = memory_bound + at_once + exposed_exchanges + offload.exposed
        return self._with_host(on_device, case)

    def _overlapped_share(self, group: RankGroup) -> float:
        """Return the share of a group's exchanges that can overlap with computation."""
        if group in (RankGroup.REPLICAS, RankGroup.SECOND_COPY):
            # ZeRO gathers weights ahead, and reduces gradients while the backward pass continues.
            return 1.0
        if group in (RankGroup.TENSOR, RankGroup.CONTEXT):
            return self._overlapped[group]
        return 0.0

    def _exchange_seconds(self, case: Case) -> dict[RankGroup, float]:
        """Return the time of exchanges between GPUs, by group of ranks."""
        seconds = {}
        for group, sent in self._links.items():
            at_peak = sent.inside / self._gpu.node_bandwidth + sent.outside / self._gpu.network_bandwidth
            seconds[group] = at_peak / LINK_EFFICIENCY.of(case)
        return seconds

    def _with_host(self, on_device: float, case: Case) -> float:
        """Add the host's time to a step's time on the device. A measured step already includes it."""
        if self._is_measured:
            return on_device
        host = self._host.seconds(case)
        return max(on_device, host.launching) + host.update
