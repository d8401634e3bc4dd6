"""The planned memory of runs on one rank."""

from functools import partial

from megatape.accounting.fitting_change import smallest_fitting_change
from megatape.accounting.layout import TrainingLayout
from megatape.config import Config
from megatape.distributed.topology import Topology
from megatape.training.startup.memory_plan import MemoryPlan

ONE_RANK = Topology(rank=0, local_rank=0, world_size=1, local_size=1)


def memory_plan(config: Config) -> MemoryPlan:
    """Return the planned memory of a run on one rank."""
    layout = partial(TrainingLayout.from_config, config, 1)
    return MemoryPlan(ONE_RANK, layout, partial(smallest_fitting_change, config, 1))
