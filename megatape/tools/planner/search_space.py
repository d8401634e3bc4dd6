"""Settings that the planner compares for a run, each with its candidate.

Settings are positions on grids of values. On most grids each step saves memory and costs time. The first grids have no such
order, so each combination of their values has a top of its own: the fastest settings with these values.
"""

from collections.abc import Iterator
from itertools import product
from math import gcd

from megatape.accounting.layout import TrainingLayout
from megatape.config import Config, with_settings
from megatape.errors import UserError
from megatape.tools.planner.candidate import Candidate
from megatape.tools.planner.nodes import check_nodes
from megatape.tools.planner.planned_cluster import PlannedCluster
from megatape.tools.planner.value_grids import NUM_UNORDERED, SECTIONS, Setting, SettingIndex, value_grids


class SearchSpace:
    """The settings of a run that its model, its batch and a cluster allow. Candidates are created when they are first read.

    Args:
        config: Configuration to vary.
        cluster: Cluster of the run.

    Attributes:
        value_grids: Grid of each setting.
        start: Index of the configuration itself, which may be invalid.
    """

    def __init__(self, config: Config, cluster: PlannedCluster) -> None:
        self.value_grids = value_grids(config, cluster.machines)
        self._config = config
        self._cluster = cluster
        self._candidates: dict[SettingIndex, Candidate | None] = {}

        raw = config.model_dump()
        stated = {}
        for section in SECTIONS:
            for name, value in raw[section].items():
                stated[f"{section}.{name}"] = value
        start = []
        for grid in self.value_grids:
            own_setting = {key: stated[key] for key in grid[0]}
            start.append(grid.index(own_setting))
        self.start = tuple(start)

    @property
    def own(self) -> Candidate | None:
        """The candidate of the configuration itself, None if it is invalid."""
        return self.candidate(self.start)

    def candidate(self, index: SettingIndex) -> Candidate | None:
        """Return the candidate at an index, or None if its ranks do not divide evenly."""
        if index not in self._candidates:
            self._candidates[index] = self._create(index)
        return self._candidates[index]

    def valid_candidate(self, index: SettingIndex) -> Candidate:
        """Return the candidate of valid settings."""
        candidate = self.candidate(index)
        assert candidate is not None
        return candidate

    def valid(self) -> dict[SettingIndex, Candidate]:
        """Return the valid candidates by index, after examining all of them."""
        found = {}
        for index in product(*map(self.positions, range(len(self.value_grids)))):
            candidate = self.candidate(index)
            if candidate is not None:
                found[index] = candidate
        return found

    def changes(self, index: SettingIndex) -> Setting:
        """Return the settings at an index that differ from the configuration's."""
        changed: Setting = {}
        for grid, old, new in zip(self.value_grids, self.start, index, strict=True):
            for key, value in grid[new].items():
                if value != grid[old][key]:
                    changed[key] = value
        return changed

    def tops(self) -> list[list[SettingIndex]]:
        """Return the top of each ZeRO stage, in a list for each tensor-parallel size."""
        rest = [0] * (len(self.value_grids) - NUM_UNORDERED)
        tops = []
        for tensor in self.positions(0):
            tops.append([(tensor, stage, *rest) for stage in self.positions(1)])
        return tops

    def neighbours_below(self, index: SettingIndex) -> Iterator[SettingIndex]:
        """Yield the settings one step down a single ordered grid."""
        for number in range(NUM_UNORDERED, len(index)):
            step = index[number] + 1
            if step < len(self.value_grids[number]):
                yield (*index[:number], step, *index[number + 1 :])

    def positions(self, number: int) -> range:
        """Return the positions on a grid."""
        return range(len(self.value_grids[number]))

    def _create(self, index: SettingIndex) -> Candidate | None:
        """Create the candidate at an index, or return None if it is invalid."""
        settings: Setting = {}
        for grid, position in zip(self.value_grids, index, strict=True):
            settings |= grid[position]
        tp, sp, cp = (settings[f"parallel.{axis}"] for axis in ("tp", "sp", "cp"))
        world_size = self._cluster.machines.world_size
        if world_size % (tp * sp * cp):
            return None
        changes_context_ranks = cp not in (1, self._config.parallel.cp)
        if changes_context_ranks and tp * sp < gcd(self._config.model.num_kv_heads, world_size):
            return None  # Ring attention costs more than dividing heads.
        try:
            config = with_settings(self._config, settings)
            check_nodes(config.parallel, self._cluster.machines.gpus_per_node)
            layout = TrainingLayout.from_config(config, world_size)
        except UserError:
            return None
        return Candidate(layout, self._cluster)
