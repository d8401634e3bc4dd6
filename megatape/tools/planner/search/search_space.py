"""Settings that the planner compares, each with its candidate.

Settings are positions on grids of values. On ordered grids each step saves memory and costs time. Tensor-parallel ranks and
ZeRO stages have no such order, so each combination of them has its own top: the fastest settings with these values.
"""

from collections.abc import Iterator
from itertools import product
from math import gcd

from megatape.accounting.layout import TrainingLayout
from megatape.config import Config, SettingValues, with_settings
from megatape.errors import UserError
from megatape.tools.planner.candidate import Candidate
from megatape.tools.planner.planned_cluster import PlannedCluster, check_nodes
from megatape.tools.planner.search.value_grids import SettingIndex, value_grids


class SearchSpace:
    """Settings that a run's model, batch and cluster allow. Candidates are created when first read.

    Args:
        config: Configuration to vary.
        cluster: Cluster of the run.

    Attributes:
        grids: Grids of the settings.
        start: Index of the configuration itself, which may be invalid.
    """

    def __init__(self, config: Config, cluster: PlannedCluster) -> None:
        self.grids = value_grids(config, cluster.machines)
        self._config = config
        self._cluster = cluster
        self._candidates: dict[SettingIndex, Candidate | None] = {}
        self.start = self.grids.index_of(config)

    @property
    def unchanged(self) -> Candidate | None:
        """Candidate of the configuration itself, None if it is invalid."""
        return self.candidate(self.start)

    def candidate(self, index: SettingIndex) -> Candidate | None:
        """Return the candidate at an index, or None if its ranks do not divide evenly."""
        if index not in self._candidates:
            self._candidates[index] = self._create(index)
        return self._candidates[index]

    def valid_candidate(self, index: SettingIndex) -> Candidate:
        """Return the candidate at the index of valid settings."""
        candidate = self.candidate(index)
        assert candidate is not None
        return candidate

    def valid(self) -> dict[SettingIndex, Candidate]:
        """Return all valid candidates by index."""
        candidates = {}
        positions = [range(len(grid.points)) for grid in self.grids.all]
        for tensor, stage, *steps in product(*positions):
            index = SettingIndex(tensor, stage, tuple(steps))
            candidate = self.candidate(index)
            if candidate is not None:
                candidates[index] = candidate
        return candidates

    def changes(self, index: SettingIndex) -> SettingValues:
        """Return the settings at an index that differ from the configuration's."""
        original = self.grids.settings(self.start)
        return {key: value for key, value in self.grids.settings(index).items() if value != original[key]}

    def tops(self) -> list[list[SettingIndex]]:
        """Return the top of each ZeRO stage, in one list per tensor-parallel size."""
        steps = (0,) * len(self.grids.ordered)
        tops = []
        for tensor in range(len(self.grids.tensor.points)):
            tops.append([SettingIndex(tensor, stage, steps) for stage in range(len(self.grids.stage.points))])
        return tops

    def neighbors_below(self, index: SettingIndex) -> Iterator[SettingIndex]:
        """Yield the settings one step down a single ordered grid."""
        for number, grid in enumerate(self.grids.ordered):
            step = index.steps[number] + 1
            if step < len(grid.points):
                yield index._replace(steps=(*index.steps[:number], step, *index.steps[number + 1 :]))

    def _create(self, index: SettingIndex) -> Candidate | None:
        """Create the candidate at an index. Return None if it is invalid."""
        settings = self.grids.settings(index)
        tp, sp, cp = (settings[f"parallel.{axis}"] for axis in ("tp", "sp", "cp"))
        world_size = self._cluster.machines.world_size
        if world_size % (tp * sp * cp):
            return None
        changes_context_ranks = cp not in (1, self._config.parallel.cp)
        if changes_context_ranks and tp * sp < gcd(self._config.model.num_kv_heads, world_size):
            # Ring attention costs more than distributing heads, which is still possible.
            return None
        try:
            config = with_settings(self._config, settings)
            check_nodes(config.parallel, self._cluster.machines.gpus_per_node)
            layout = TrainingLayout.from_config(config, world_size)
        except UserError:
            return None
        return Candidate(layout, self._cluster)
