"""CPU time for launching a step. A GPU waits if it computes faster than the CPU launches.

The limits are fitted to runs on one H200 (docs/results/planned.md), whose virtual machine with a slow CPU is the bad case. The
good case is a current server.
"""

from typing import NamedTuple

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.shapes.trace import trace_micro_batch, trace_parameters
from megatape.tools.planner.kernels.step_work import eager_work
from megatape.tools.planner.step_time.cases import ByCase, Case

# Seconds per launch of a kernel, including autograd and Python code.
LAUNCH_SECONDS = ByCase(80e-6, 8e-6)
# Seconds per hook of a module. ZeRO stage 3 has four hooks per module.
HOOK_SECONDS = ByCase(100e-6, 20e-6)
# Seconds per step for DeepSpeed's work around the optimizer. They were fitted when it still launched kernels for each weight
# (joint_norm.py).
UPDATE_SECONDS = ByCase(40e-3, 3e-3)

# Launches for each gradient of recorded passes: a copy out of their memory, and a sum. Several data-parallel ranks have about
# two more, for buckets. Counted in the code, not measured.
LAUNCHES_PER_GRADIENT = 2


class HostTime(NamedTuple):
    """CPU seconds for one optimizer step.

    Attributes:
        launching: Launching kernels, overlapped with the GPU's work.
        update: Updating weights, not overlapped.
    """

    launching: float
    update: float


class HostWork(NamedTuple):
    """CPU work for one optimizer step.

    Attributes:
        launches: Kernels in all micro-batches, as without torch.compile: compiled parts launch fewer, but measured steps do not
            launch faster. With recorded passes, only those for gradients.
        hooks: Module hooks that ZeRO stage 3 runs.
    """

    launches: int
    hooks: int

    def seconds(self, case: Case) -> HostTime:
        """Return the CPU time in one case."""
        launching = self.launches * LAUNCH_SECONDS.of(case) + self.hooks * HOOK_SECONDS.of(case)
        return HostTime(launching, UPDATE_SECONDS.of(case))


def host_work(layout: TrainingLayout) -> HostWork:
    """Return the launches and hooks of one optimizer step on one rank."""
    if layout.records_passes:
        launches = LAUNCHES_PER_GRADIENT * len(trace_parameters(layout.workload).trained)
    else:
        launches = sum(eager_work(layout.workload).values())
    hooks = 0
    if layout.zero.stage == 3:
        hooks = len(trace_micro_batch(layout.workload).events)
    return HostWork(layout.num_micro_batches * launches, layout.num_micro_batches * hooks)
