"""The fastest settings of a run that fit a cluster, and the smallest change that makes a run fit.

Settings are positions on grids of values. On most grids each step saves memory and costs time. The fastest candidates are
therefore found by going down from the top: no candidate is faster than those above it, and candidates below one that fits are
skipped. The first grids have no such order, so each combination of their values has a top of its own.

Candidates are created when the search reaches them. At a deadline, the search ends with the best ones found so far.
"""

import time
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import combinations, product
from math import floor, gcd, log

from megatape.accounting.gpus import Gpu
from megatape.accounting.layout import TrainingLayout
from megatape.config import ClusterConfig, Config, with_settings
from megatape.errors import UserError
from megatape.tools.planner.candidate import Candidate
from megatape.tools.planner.nodes import check_nodes
from megatape.tools.planner.speed import TOLERANCE
from megatape.tools.planner.value_grids import NUM_UNORDERED, SECTIONS, Setting, SettingIndex, value_grids

SEARCH_SECONDS = 4.5  # Time limit of a search. Including the start of Python, a command takes less than ten seconds.

BOUND_STEP = 1.1  # Lower bounds of a step's seconds count as equal if their ratio is below this.


class Space:
    """The settings of a run that its model, its batch and a cluster allow.

    Args:
        config: Configuration to vary.
        cluster: Machines of the run.
        gpu: Their GPU.
        correction: See `plan_speed`.
        limit: Time limit of searches in seconds, None for no limit. At the limit they end with the settings found so far.

    Attributes:
        value_grids: Grid of each setting.
        start: Index of the configuration itself, which may be invalid.
        timed_out: Whether a search has ended at its limit.
    """

    def __init__(
        self, config: Config, cluster: ClusterConfig, gpu: Gpu, correction: float | None = None, limit: float | None = None
    ) -> None:
        self.value_grids = value_grids(config, cluster)
        self.timed_out = False
        self._config = config
        self._cluster = cluster
        self._gpu = gpu
        self._correction = correction
        self._deadline = None
        if limit is not None:
            self._deadline = time.monotonic() + limit
        self._candidates: dict[SettingIndex, Candidate | None] = {}

        stated = {}
        for section in SECTIONS:
            for name, value in config.model_dump()[section].items():
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

    def valid(self) -> dict[SettingIndex, Candidate]:
        """Return the valid candidates by index, after examining all of them."""
        found = {}
        for index in product(*map(self._positions, range(len(self.value_grids)))):
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

    def fastest(self) -> Iterator[SettingIndex]:
        """Yield the settings that fit into memory, fastest first.

        Settings are skipped if others with the same tensor-parallel size and ZeRO stage fit and save less memory: they cannot
        be faster. After the time limit, only settings found before it follow.

        The search is best-first. Each group (one tensor-parallel size, one ZeRO stage) starts at its fastest settings. Settings
        that do not fit are replaced by their neighbours, one step further down a grid. The heap is ordered by seconds: the
        estimate of settings that fit, a lower bound for settings that are not examined yet.
        """
        fitting: list[SettingIndex] = []
        seen: set[SettingIndex] = set()
        heap: list[tuple[float, bool, SettingIndex]] = []  # (seconds, whether the settings fit, index)
        # The groups of the next tensor-parallel size are added only once the search could end without them.
        groups = self._tops()
        while True:
            if self._is_late():
                groups = []
                heap = sorted(entry for entry in heap if entry[1])
            next_one_fits = not heap or heap[0][1]
            if groups and next_one_fits:
                for top in groups.pop(0):
                    heappush(heap, (0.0, False, top))
                continue
            if not heap:
                return

            seconds, fits, index = heappop(heap)
            if fits:
                yield index
                continue
            if any(needs_no_more_memory(index, other) for other in fitting):
                continue

            candidate = self.candidate(index)
            if candidate is not None and candidate.fits:
                fitting.append(index)
                heappush(heap, (candidate.seconds.middle, True, index))
                continue

            is_top = not any(index[NUM_UNORDERED:])
            if candidate is not None and is_top:
                # Settings below are no faster. Nearly equal bounds are rounded to the same one, so that simpler settings go
                # first.
                seconds = BOUND_STEP ** floor(log(candidate.seconds.middle, BOUND_STEP))
            for neighbour in self._neighbours_below(index):
                if neighbour not in seen:
                    seen.add(neighbour)
                    heappush(heap, (seconds, False, neighbour))

    def preferred(self) -> tuple[list[SettingIndex], SettingIndex | None]:
        """Search for the settings to advise.

        Returns:
            The fitting settings within the estimate's tolerance of the fastest ones, fastest first, including the
            configuration's own if they are within the tolerance; and the simplest of them, None if none fit. Of equally simple
            settings, those with the fewest changes are chosen.
        """
        own = self.own
        found: list[SettingIndex] = []
        if own is not None and own.fits:
            found.append(self.start)
        fastest = None
        for index in self.fastest():
            seconds = self._valid_candidate(index).seconds.middle
            if fastest is None:
                fastest = seconds
            if seconds > (1 + TOLERANCE) * fastest:
                break
            if index not in found:
                found.append(index)
        if not found:
            return [], None
        found.sort(key=lambda index: self._valid_candidate(index).seconds.middle)
        slowest = (1 + TOLERANCE) * self._valid_candidate(found[0]).seconds.middle
        found = [index for index in found if self._valid_candidate(index).seconds.middle <= slowest]

        def effort(index: SettingIndex) -> tuple[int, int, float]:
            candidate = self._valid_candidate(index)
            return candidate.complexity, len(self.changes(index)), candidate.seconds.middle

        return found, min(found, key=effort)

    def smallest_change(self) -> SettingIndex | None:
        """Find the fitting settings with the fewest changes of the configuration, the fastest ones if there are several.

        After the time limit, return the fastest of the settings found before it, or None.
        """
        numbers = range(len(self.value_grids))
        for size in range(1, len(self.value_grids) + 1):
            fitting: list[SettingIndex] = []
            for changed in combinations(numbers, size):
                fitting += self._fitting(changed)
            if fitting:
                return min(fitting, key=lambda index: self._valid_candidate(index).seconds.middle)
            if self.timed_out:
                return None
        return None

    def _fitting(self, changed: tuple[int, ...]) -> Iterator[SettingIndex]:
        """Yield the fitting settings that differ from the configuration on exactly these grids."""
        positions = [[own] for own in self.start]
        for number in changed:
            positions[number] = [position for position in self._positions(number) if position != self.start[number]]
        for index in product(*positions):
            if self._is_late():
                return
            candidate = self.candidate(index)
            if candidate is not None and candidate.fits:
                yield index

    def _tops(self) -> list[list[SettingIndex]]:
        """Return the top of each ZeRO stage, in a list for each tensor-parallel size."""
        rest = [0] * (len(self.value_grids) - NUM_UNORDERED)
        tops = []
        for tensor in self._positions(0):
            tops.append([(tensor, stage, *rest) for stage in self._positions(1)])
        return tops

    def _neighbours_below(self, index: SettingIndex) -> Iterator[SettingIndex]:
        """Yield the settings one step down a single ordered grid."""
        for number in range(NUM_UNORDERED, len(index)):
            step = index[number] + 1
            if step < len(self.value_grids[number]):
                yield (*index[:number], step, *index[number + 1 :])

    def _positions(self, number: int) -> range:
        """Return the positions on a grid."""
        return range(len(self.value_grids[number]))

    def _valid_candidate(self, index: SettingIndex) -> Candidate:
        """Return the candidate of valid settings."""
        candidate = self.candidate(index)
        assert candidate is not None
        return candidate

    def _is_late(self) -> bool:
        """Whether the time limit is over. If so, set `timed_out`."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.timed_out = True
        return self.timed_out

    def _create(self, index: SettingIndex) -> Candidate | None:
        """Create the candidate at an index, or return None if it is invalid."""
        settings: Setting = {}
        for grid, position in zip(self.value_grids, index, strict=True):
            settings |= grid[position]
        tp, sp, cp = (settings[f"parallel.{axis}"] for axis in ("tp", "sp", "cp"))
        world_size = self._cluster.world_size
        if world_size % (tp * sp * cp):
            return None
        changes_context_ranks = cp not in (1, self._config.parallel.cp)
        if changes_context_ranks and tp * sp < gcd(self._config.model.num_kv_heads, world_size):
            return None  # Ring attention costs more than dividing heads.
        try:
            config = with_settings(self._config, settings)
            check_nodes(config.parallel, self._cluster.gpus_per_node)
            layout = TrainingLayout.from_config(config, world_size)
        except UserError:
            return None
        return Candidate(layout, self._cluster, self._gpu, self._correction)


def needs_no_more_memory(index: SettingIndex, other: SettingIndex) -> bool:
    """Whether `index` saves at least as much memory as `other` in every setting, at the same tensor size and ZeRO stage."""
    if index[:NUM_UNORDERED] != other[:NUM_UNORDERED]:
        return False
    return all(own >= others for own, others in zip(index, other, strict=True))
