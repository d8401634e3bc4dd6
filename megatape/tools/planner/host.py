"""CPU time for launching a step. A GPU that computes faster than the CPU launches has to wait.

The limits of each range are fitted to runs on one H200 (docs/results/planned.md). Its virtual machine has a slow CPU, which is
the bad case. The good case is a current server.
"""

from typing import NamedTuple

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.trace import run_pass
from megatape.tools.planner.cases import ByCase, Case
from megatape.tools.planner.work import eager_work

LAUNCH_SECONDS = ByCase(80e-6, 8e-6)  # per kernel, including autograd and Python code
HOOK_SECONDS = ByCase(100e-6, 20e-6)  # per module hook; ZeRO stage 3 has four per module
UPDATE_SECONDS = ByCase(40e-3, 3e-3)  # per step, for DeepSpeed's work around the optimizer


class HostTime(NamedTuple):
    """Time of the CPU for one optimizer step, in seconds.

    Attributes:
        launching: Time of launching kernels, which overlaps with the GPU's work.
        update: Time of the update, which does not.
    """

    launching: float
    update: float


class HostWork(NamedTuple):
    """Work of the CPU for one optimizer step.

    Attributes:
        launches: Number of kernels in all micro-batches. Compiled parts launch fewer kernels, but measured steps do not launch
            faster.
        hooks: Number of module hooks that ZeRO stage 3 runs.
    """

    launches: int
    hooks: int

    def seconds(self, case: Case) -> HostTime:
        """Return the time of the work."""
        launching = self.launches * LAUNCH_SECONDS.of(case) + self.hooks * HOOK_SECONDS.of(case)
        return HostTime(launching, UPDATE_SECONDS.of(case))


def host_work(layout: TrainingLayout) -> HostWork:
    """Count the launches and hooks of one optimizer step on one rank."""
    launches = sum(eager_work(layout.workload).values())
    hooks = 0
    if layout.zero.stage == 3:
        hooks = len(run_pass(layout.workload).events)
    return HostWork(layout.micro_batches * launches, layout.micro_batches * hooks)
