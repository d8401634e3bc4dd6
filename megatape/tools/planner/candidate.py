"""A run on a cluster, with its memory and speed."""

from dataclasses import dataclass
from functools import cached_property

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import plan_total
from megatape.accounting.memory.state_memory import plan_state
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic
from megatape.tools.planner.memory_requirements import MemoryRequirements, memory_requirements
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.step_time.cases import Range
from megatape.tools.planner.step_time.speed import plan_speed


@dataclass(frozen=True)
class Candidate:
    """A run on a cluster. Memory and speed are planned when first read.

    Attributes:
        layout: Layout of the run.
        cluster: Nodes, GPUs and bandwidths.
    """

    layout: TrainingLayout
    cluster: PlannedCluster

    @cached_property
    def requirements(self) -> MemoryRequirements:
        """Memory requirements of the run."""
        return memory_requirements(plan_total(self.layout, on_gpu=True), self.cluster)

    @cached_property
    def fits(self) -> bool:
        """Whether all memory suffices, with a margin."""
        # Planning without activations is fast, and often exceeds the memory already.
        state = plan_state(self.layout)
        without_activations = memory_requirements(state, self.cluster)
        return without_activations.fits_with_margin and self.requirements.fits_with_margin

    @cached_property
    def seconds(self) -> Range:
        """Seconds of a step."""
        return plan_speed(self.layout, self.cluster).seconds

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        return self.layout.zero.stage

    @property
    def data_bytes(self) -> int:
        """Bytes per step that a rank sends to other ranks training the same weights."""
        return plan_traffic(self.layout).sent[RankGroup.REPLICAS].total()

    @property
    def complexity(self) -> int:
        """Number of techniques in use for sharding or saving memory."""
        parallel = self.layout.workload.parallel
        zero = self.layout.zero
        techniques = [
            parallel.tp > 1,
            parallel.sp > 1,
            parallel.cp > 1,
            zero.stage == 3,
            zero.offload_optimizer,
            zero.offload_parameters,
            self.layout.workload.activation_checkpointing != "none",
        ]
        return sum(techniques)
