"""The time that the processor needs to launch a step: a GPU that is faster than its processor waits.

The limits of each range are fitted to runs on one H200 (docs/planning.md): its virtual machine has a slow processor, which is
the bad case. The good case is that of a current server.
"""

from typing import NamedTuple

from megatape.config import Config
from megatape.plan.trace import run_pass
from megatape.plan.work import eager_work

# Seconds, (bad, good).
LAUNCH_SECONDS = (80e-6, 8e-6)  # for each kernel, with autograd and the Python around it
HOOK_SECONDS = (100e-6, 20e-6)  # for each hook of a module, of which ZeRO stage 3 has four
UPDATE_SECONDS = (40e-3, 3e-3)  # for DeepSpeed's work around the optimizer in a step


class HostWork(NamedTuple):
    """Number of things that the processor does for a step.

    Attributes:
        launches: Kernels of all micro-batches. Compiled parts launch fewer, but measured steps are no faster to launch.
        hooks: Hooks of modules that ZeRO stage 3 runs.
    """

    launches: int
    hooks: int

    def seconds(self, case: int) -> tuple[float, float]:
        """Return the time of launching, which can overlap with the GPU's work, and the time of the update, which cannot.

        Args:
            case: 0 for the bad case, 1 for the good one.
        """
        launching = self.launches * LAUNCH_SECONDS[case] + self.hooks * HOOK_SECONDS[case]
        return launching, UPDATE_SECONDS[case]


def host_work(config: Config, world_size: int) -> HostWork:
    """Count the launches and hooks of one optimizer step on one rank.

    Args:
        config: Configuration of the run.
        world_size: Number of ranks.
    """
    micro_batches = config.accumulation(world_size)
    launches = sum(eager_work(config).values())
    hooks = 0
    if config.zero.stage == 3:
        hooks = len(run_pass(config).events)
    return HostWork(micro_batches * launches, micro_batches * hooks)
