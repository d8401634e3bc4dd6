"""Planned memory for runs on one rank."""

from functools import partial

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.fitting_change import smallest_fitting_change
from megatape.config import Config
from megatape.distributed.topology import Topology
from megatape.training.startup.memory.memory_plan import MemoryPlan

ONE_RANK = Topology(rank=0, local_rank=0, world_size=1, local_size=1)


def memory_plan(config: Config) -> MemoryPlan:
    """Return the memory planned for a run on one rank."""
    layout = partial(TrainingLayout.from_config, config, 1)
    return MemoryPlan(ONE_RANK, layout, partial(smallest_fitting_change, config, 1))
