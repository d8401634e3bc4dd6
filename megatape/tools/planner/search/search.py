"""Searches for the fastest settings that fit a cluster, and for the smallest change that makes a run fit.

The search goes down from the top of the grids: no candidate is faster than those above it, and candidates below a fitting one
are skipped.
"""

import time
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import combinations, product
from math import floor, log
from typing import NamedTuple

from megatape.tools.planner.candidate import Candidate
from megatape.tools.planner.search.search_space import SearchSpace
from megatape.tools.planner.search.value_grids import SettingIndex
from megatape.tools.planner.step_time.speed import TOLERANCE

# Limit of processor time. Including Python's startup, a command takes less than ten seconds on an idle machine.
SEARCH_SECONDS = 4.5
# Lower bounds of step times count as equal if their ratio is below this.
BOUND_STEP = 1.1


class _Entry(NamedTuple):
    """Settings in the queue of a search. At equal seconds, those not examined yet come first.

    Attributes:
        seconds: Estimated seconds of a step if the settings fit, otherwise a lower bound.
        fits: Whether the settings have been examined and fit into memory.
        settings: Their index.
    """

    seconds: float
    fits: bool
    settings: SettingIndex


class Advice(NamedTuple):
    """Result of a search.

    Attributes:
        candidates: All fitting settings within the estimate's tolerance of the fastest ones, fastest first, the configuration's
            own among them.
        preferred: The simplest of the candidates with the fewest changes, None if none fit.
    """

    candidates: list[SettingIndex]
    preferred: SettingIndex | None


class Search:
    """Searches among the settings of a run. At the time limit, a search ends with the settings found so far.

    Args:
        space: Settings to search.
        limit: Limit of processor time in seconds from now on, None for no limit. On a busy machine, a search takes longer and
            finds the same.

    Attributes:
        timed_out: Whether a search has ended at the limit.
    """

    def __init__(self, space: SearchSpace, limit: float | None = None) -> None:
        self.timed_out = False
        self._space = space
        self._deadline: float | None = None
        if limit is not None:
            self._deadline = time.process_time() + limit

    def fastest(self) -> Iterator[SettingIndex]:
        """Yield the settings that fit into memory, fastest first. After the time limit, only settings found before it follow.

        This is a best-first search. Each group (one tensor-parallel size, one ZeRO stage) starts at its fastest settings.
        Settings that do not fit are replaced by their neighbors, one step down a grid. Settings that save more memory than
        fitting ones of their group are skipped, because they cannot be faster.
        """
        queue: list[_Entry] = []
        queued: set[SettingIndex] = set()
        fitting: list[SettingIndex] = []
        # Groups of the next tensor-parallel size are added only when the search could end without them.
        remaining_groups = self._space.tops()
        while True:
            self._check_deadline()
            if self.timed_out:
                remaining_groups = []
                queue = sorted(entry for entry in queue if entry.fits)
            is_next_result_known = not queue or queue[0].fits
            if remaining_groups and is_next_result_known:
                for top in remaining_groups.pop(0):
                    heappush(queue, _Entry(0.0, False, top))
                continue
            if not queue:
                return

            entry = heappop(queue)
            if entry.fits:
                yield entry.settings
                continue
            if any(entry.settings.needs_no_more_memory(other) for other in fitting):
                continue

            candidate = self._space.candidate(entry.settings)
            if candidate is not None and candidate.fits:
                fitting.append(entry.settings)
                heappush(queue, _Entry(candidate.seconds.middle, True, entry.settings))
                continue
            bound = _bound_below(entry, candidate)
            for neighbor in self._space.neighbors_below(entry.settings):
                if neighbor not in queued:
                    queued.add(neighbor)
                    heappush(queue, _Entry(bound, False, neighbor))

    def advise(self) -> Advice:
        """Search for the settings to advise.

        Returns:
            The advice, without candidates if no settings fit.
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
            return Advice([], None)
        candidates.sort(key=self._seconds)
        slowest = (1 + TOLERANCE) * self._seconds(candidates[0])
        within_tolerance = [index for index in candidates if self._seconds(index) <= slowest]
        return Advice(within_tolerance, min(within_tolerance, key=self._effort))

    def _seconds(self, index: SettingIndex) -> float:
        """Return the estimated step time of valid settings."""
        return self._space.valid_candidate(index).seconds.middle

    def _effort(self, index: SettingIndex) -> tuple[int, int, float]:
        """Return a sort key by which simple settings with few changes come first."""
        return self._space.valid_candidate(index).complexity, len(self._space.changes(index)), self._seconds(index)

    def smallest_change(self) -> SettingIndex | None:
        """Find the fastest fitting settings among those with the fewest changes.

        Runs that lack memory use a simpler search, which does not estimate step times (accounting/memory/fitting_change.py).

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
            self._check_deadline()
            if self.timed_out:
                return
            index = SettingIndex(tensor, stage, tuple(steps))
            candidate = self._space.candidate(index)
            if candidate is not None and candidate.fits:
                yield index

    def _check_deadline(self) -> None:
        """Set `timed_out` if the time is over."""
        if self._deadline is not None and time.process_time() > self._deadline:
            self.timed_out = True


def _bound_below(entry: _Entry, candidate: Candidate | None) -> float:
    """Return a lower bound of the seconds at the settings below an entry, which are no faster.

    Args:
        entry: Settings that do not fit.
        candidate: Their candidate, None if they are invalid.
    """
    if candidate is None or not entry.settings.is_top:
        return entry.seconds
    # Round nearly equal bounds to the same one, so that simpler settings go first.
    return BOUND_STEP ** floor(log(candidate.seconds.middle, BOUND_STEP))
