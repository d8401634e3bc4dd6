"""Searches for the fastest settings that fit a cluster, and for the smallest change that makes a run fit.

The search goes down from the top of the grids: no candidate is faster than those above it, and candidates below a fitting one
are skipped.
"""

import time
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import combinations, product
from math import floor, log

from megatape.tools.planner.search_space import SearchSpace
from megatape.tools.planner.speed import TOLERANCE
from megatape.tools.planner.value_grids import SettingIndex

SEARCH_SECONDS = 4.5  # Time limit. Including Python's startup, a command takes less than ten seconds.

BOUND_STEP = 1.1  # Lower bounds of step times count as equal if their ratio is below this.


class Search:
    """Searches among the settings of a run. At the time limit, a search ends with the settings found so far.

    Args:
        space: Settings to search.
        limit: Time limit in seconds from now on, None for no limit.

    Attributes:
        timed_out: Whether a search has ended at the limit.
    """

    def __init__(self, space: SearchSpace, limit: float | None = None) -> None:
        self.timed_out = False
        self._space = space
        self._deadline = None
        if limit is not None:
            self._deadline = time.monotonic() + limit

    def fastest(self) -> Iterator[SettingIndex]:
        """Yield the settings that fit into memory, fastest first. After the time limit, only settings found before it follow.

        This is a best-first search. Each group (one tensor-parallel size, one ZeRO stage) starts at its fastest settings.
        Settings that do not fit are replaced by their neighbors, one step down a grid. Settings that save more memory than
        fitting ones of their group are skipped, because they cannot be faster. The heap is ordered by seconds: the estimate if
        settings fit, a lower bound if they are not examined yet.
        """
        fitting: list[SettingIndex] = []
        seen: set[SettingIndex] = set()
        heap: list[tuple[float, bool, SettingIndex]] = []  # (seconds, whether the settings fit, index)
        # Groups of the next tensor-parallel size are added only when the search could end without them.
        groups = self._space.tops()
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
            if any(index.needs_no_more_memory(other) for other in fitting):
                continue

            candidate = self._space.candidate(index)
            if candidate is not None and candidate.fits:
                fitting.append(index)
                heappush(heap, (candidate.seconds.middle, True, index))
                continue

            if candidate is not None and index.is_top:
                # Settings below are no faster. Round nearly equal bounds to the same one, so that simpler settings go first.
                seconds = BOUND_STEP ** floor(log(candidate.seconds.middle, BOUND_STEP))
            for neighbor in self._space.neighbors_below(index):
                if neighbor not in seen:
                    seen.add(neighbor)
                    heappush(heap, (seconds, False, neighbor))

    def preferred(self) -> tuple[list[SettingIndex], SettingIndex | None]:
        """Search for the settings to advise.

        Returns:
            All fitting settings within the estimate's tolerance of the fastest ones, fastest first, the configuration's own
            among them; and the simplest of these with the fewest changes, None if none fit.
        """
        unchanged = self._space.unchanged
        candidates: list[SettingIndex] = []
        if unchanged is not None and unchanged.fits:
            candidates.append(self._space.start)
        fastest = None
        for index in self.fastest():
            seconds = self._seconds(index)
            if fastest is None:
                fastest = seconds
            if seconds > (1 + TOLERANCE) * fastest:
                break
            if index not in candidates:
                candidates.append(index)
        if not candidates:
            return [], None
        candidates.sort(key=self._seconds)
        slowest = (1 + TOLERANCE) * self._seconds(candidates[0])
        within_tolerance = [index for index in candidates if self._seconds(index) <= slowest]
        return within_tolerance, min(within_tolerance, key=self._effort)

    def _seconds(self, index: SettingIndex) -> float:
        """Return the estimated step time of valid settings."""
        return self._space.valid_candidate(index).seconds.middle

    def _effort(self, index: SettingIndex) -> tuple[int, int, float]:
        """Return a sort key by which simple settings with few changes come first."""
        return self._space.valid_candidate(index).complexity, len(self._space.changes(index)), self._seconds(index)

    def smallest_change(self) -> SettingIndex | None:
        """Find the fastest fitting settings among those with the fewest changes.

        After the time limit, return the fastest settings found before it, or None.
        """
        numbers = range(len(self._space.grids.all))
        for size in range(1, len(numbers) + 1):
            fitting: list[SettingIndex] = []
            for changed in combinations(numbers, size):
                fitting += self._fitting(changed)
            if fitting:
                return min(fitting, key=self._seconds)
            if self.timed_out:
                return None
        return None

    def _fitting(self, changed: tuple[int, ...]) -> Iterator[SettingIndex]:
        """Yield the fitting settings that differ from the configuration on exactly these grids."""
        start = self._space.start.positions
        positions = [[position] for position in start]
        for number in changed:
            num_points = len(self._space.grids.all[number].points)
            positions[number] = [position for position in range(num_points) if position != start[number]]
        for tensor, stage, *steps in product(*positions):
            if self._is_late():
                return
            index = SettingIndex(tensor, stage, tuple(steps))
            candidate = self._space.candidate(index)
            if candidate is not None and candidate.fits:
                yield index

    def _is_late(self) -> bool:
        """Whether the time is over. If so, set `timed_out`."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.timed_out = True
        return self.timed_out
