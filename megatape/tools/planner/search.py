"""The fastest settings of a run that fit a cluster, and the smallest change that makes a run fit.

A setting is a position on a ladder. On most ladders each step saves memory and costs time, so the fastest candidates are found
by going down from the top: none is faster than those above it, and places below one that fits are skipped. The first ladders
have no such order: every combination of them has a top of its own.

Candidates are created when the search reaches them. At a deadline, the search ends with the best ones found so far.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import combinations, product
from math import floor, gcd, isqrt, log, prod, sqrt
from typing import Any, get_args

from megatape.accounting.gpus import Gpu
from megatape.accounting.memory import plan_state, plan_total
from megatape.accounting.needs import Need, check_cluster, memory_needs
from megatape.config import ActivationCheckpointing, ClusterConfig, Config, parse_config
from megatape.errors import UserError
from megatape.tools.planner.speed import TOLERANCE, plan_speed

SEARCH_SECONDS = 4.5  # Time limit of a search. Including the start of Python, a command takes less than ten seconds.

BOUND_STEP = 1.1  # Lower bounds of a step's seconds count as equal if their ratio is below this.

Place = tuple[int, ...]  # on each ladder
Setting = dict[str, Any]  # section.key -> value
FREE = 2  # The first two ladders (tensor-parallel ranks, ZeRO stage) have no order: a higher value may be faster or slower.
SECTIONS = ("parallel", "zero", "training")  # Sections of the configuration that contain the settings.
SHORT = 1024  # Minimum tokens of a sample per rank. With fewer, ranks would exchange more than they compute.
LARGE = 2**16  # Maximum tokens of a micro-batch. Beyond it, step times change by less than the error of the estimate.


@dataclass(frozen=True)
class Candidate:
    """Settings on a cluster. correction: as `plan_speed` has it."""

    config: Config
    cluster: ClusterConfig
    gpu: Gpu
    correction: float | None = None

    @cached_property
    def needs(self) -> dict[str, Need]:
        """Memory requirements by device."""
        return memory_needs(plan_total(self.config, self.cluster.world_size, on_gpu=True), self.cluster, self.gpu)

    @property
    def of_gpu(self) -> Need:
        """Memory requirement of a GPU."""
        return self.needs["of a GPU"]

    @cached_property
    def fits(self) -> bool:
        """Whether all memory suffices, with the margin of advised settings."""
        state = plan_state(self.config, self.cluster.world_size)  # fast to plan, and often too large already
        without_activations = memory_needs(state, self.cluster, self.gpu).values()
        if not all(need.fits_with_margin for need in without_activations):
            return False
        return all(need.fits_with_margin for need in self.needs.values())

    @cached_property
    def speed(self) -> tuple[float, float]:
        """Seconds of a step, (low, high)."""
        return plan_speed(self.config, self.cluster, self.gpu, self.correction).seconds

    @property
    def seconds(self) -> float:
        """Geometric mean of that range."""
        return sqrt(prod(self.speed))

    @property
    def complexity(self) -> int:
        """Number of techniques in use for dividing or saving memory."""
        parallel = self.config.parallel
        zero = self.config.zero
        techniques = [
            parallel.tp > 1,
            parallel.sp > 1,
            parallel.cp > 1,
            zero.stage == 3,
            zero.offload_optimizer,
            zero.offload_parameters,
            self.config.training.activation_checkpointing != "none",
        ]
        return sum(techniques)


class Space:
    """The settings of a run that its model, its batch and a cluster allow.

    Args:
        config: The configuration that they are around.
        cluster: The machines.
        gpu: Their GPU.
        correction: As `plan_speed` has it.
        limit: Time limit of searches in seconds, None for no limit. At the limit they end with the places found so far.

    Attributes:
        ladders: Values of one setting, or of some that change together; all but the first two from fast to small.
        start: Place of the configuration itself, which may be invalid.
        timed_out: Whether a search has ended at its limit.
    """

    def __init__(
        self, config: Config, cluster: ClusterConfig, gpu: Gpu, correction: float | None = None, limit: float | None = None
    ) -> None:
        self.ladders = _ladders(config, cluster)
        self.timed_out = False
        self._config = config
        self._cluster = cluster
        self._gpu = gpu
        self._correction = correction
        self._deadline = None if limit is None else time.monotonic() + limit
        self._raw = config.model_dump()
        self._candidates: dict[Place, Candidate | None] = {}
        stated = {f"{section}.{name}": value for section in SECTIONS for name, value in self._raw[section].items()}
        self.start = tuple(ladder.index({key: stated[key] for key in ladder[0]}) for ladder in self.ladders)

    @property
    def own(self) -> Candidate | None:
        """The candidate of the configuration itself, None if it is invalid."""
        return self.candidate(self.start)

    def candidate(self, place: Place) -> Candidate | None:
        """Return the candidate at a place, or None if its ranks do not divide evenly."""
        if place not in self._candidates:
            self._candidates[place] = self._make(place)
        return self._candidates[place]

    def valid(self) -> dict[Place, Candidate]:
        """Return the valid candidates by place, after examining all places."""
        found = {}
        for place in product(*map(self._positions, range(len(self.ladders)))):
            candidate = self.candidate(place)
            if candidate is not None:
                found[place] = candidate
        return found

    def changes(self, place: Place) -> Setting:
        """Return the settings at a place that differ from the configuration's."""
        steps = zip(self.ladders, self.start, place, strict=True)
        return {key: value for ladder, old, new in steps for key, value in ladder[new].items() if value != ladder[old][key]}

    def fastest(self) -> Iterator[Place]:
        """Yield the places that fit, fastest first.

        Places that save more memory than another fitting place are skipped. After the time limit, only places found before it
        follow.
        """
        fitting: list[Place] = []
        # The next number of tensor-parallel ranks is tried only once the search could end without it.
        groups = self._tops()
        waiting: list[tuple[float, bool, Place]] = []
        seen: set[Place] = set()
        while True:
            if self._is_late():
                groups = []
                waiting = sorted(entry for entry in waiting if entry[1])
            if groups and (not waiting or waiting[0][1]):
                for top in groups.pop(0):
                    heappush(waiting, (0.0, False, top))
                continue
            if not waiting:
                return
            seconds, timed, place = heappop(waiting)
            if timed:
                yield place
                continue
            if any(saves_more(place, other) for other in fitting):
                continue
            candidate = self.candidate(place)
            if candidate is not None and candidate.fits:
                fitting.append(place)
                heappush(waiting, (candidate.seconds, True, place))
                continue
            if candidate is not None and not any(place[FREE:]):
                # Places below are no faster. Nearly equal bounds are rounded to the same one, so that simpler places go first.
                seconds = BOUND_STEP ** floor(log(candidate.seconds, BOUND_STEP))
            for below in self._below(place):
                if below not in seen:
                    seen.add(below)
                    heappush(waiting, (seconds, False, below))

    def preferred(self) -> tuple[list[Place], Place | None]:
        """Search for the settings to advise.

        Returns:
            The fitting places within the estimate's tolerance of the fastest one, fastest first, with the configuration's own
            place if it is within the tolerance; and the simplest of them, None if none fits. Of equally simple places, the one
            with the fewest changes is chosen.
        """
        own = self.own
        found: list[Place] = []
        if own is not None and own.fits:
            found.append(self.start)
        fastest = None
        for place in self.fastest():
            seconds = self._at(place).seconds
            if fastest is None:
                fastest = seconds
            if seconds > (1 + TOLERANCE) * fastest:
                break
            if place not in found:
                found.append(place)
        if not found:
            return [], None
        found.sort(key=lambda place: self._at(place).seconds)
        slowest = (1 + TOLERANCE) * self._at(found[0]).seconds
        found = [place for place in found if self._at(place).seconds <= slowest]

        def effort(place: Place) -> tuple[int, int, float]:
            candidate = self._at(place)
            return candidate.complexity, len(self.changes(place)), candidate.seconds

        return found, min(found, key=effort)

    def smallest_change(self) -> Place | None:
        """Find the fitting place with the fewest changes of the configuration, the fastest one if there are several.

        After the time limit, return the fastest of the places found before it, or None.
        """
        numbers = range(len(self.ladders))
        for size in range(1, len(self.ladders) + 1):
            fitting: list[Place] = []
            for changed in combinations(numbers, size):
                fitting += self._fitting(changed)
            if fitting:
                return min(fitting, key=lambda place: self._at(place).seconds)
            if self.timed_out:
                return None
        return None

    def _fitting(self, changed: tuple[int, ...]) -> Iterator[Place]:
        """Yield the fitting places that differ from the configuration on exactly these ladders."""
        values = [[at] for at in self.start]
        for number in changed:
            values[number] = [at for at in self._positions(number) if at != self.start[number]]
        for place in product(*values):
            if self._is_late():
                return
            candidate = self.candidate(place)
            if candidate is not None and candidate.fits:
                yield place

    def _tops(self) -> list[list[Place]]:
        """Return the top place of each ZeRO stage, in a list for each number of tensor-parallel ranks."""
        rest = [0] * (len(self.ladders) - FREE)
        return [[(tensor, stage, *rest) for stage in self._positions(1)] for tensor in self._positions(0)]

    def _below(self, place: Place) -> Iterator[Place]:
        """Yield the places one step down each ordered ladder."""
        for number in range(FREE, len(place)):
            if place[number] + 1 < len(self.ladders[number]):
                yield (*place[:number], place[number] + 1, *place[number + 1 :])

    def _positions(self, number: int) -> range:
        """Return the positions on a ladder."""
        return range(len(self.ladders[number]))

    def _at(self, place: Place) -> Candidate:
        """Return the candidate at a valid place."""
        candidate = self.candidate(place)
        assert candidate is not None
        return candidate

    def _is_late(self) -> bool:
        """Whether the time limit is over. If so, set `timed_out`."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.timed_out = True
        return self.timed_out

    def _make(self, place: Place) -> Candidate | None:
        """Create the candidate at a place, or return None if it is invalid."""
        settings = [ladder[at] for ladder, at in zip(self.ladders, place, strict=True)]
        for setting in settings:
            for key, value in setting.items():
                section, _, name = key.partition(".")
                self._raw[section][name] = value
        tp, sp, cp = (self._raw["parallel"][axis] for axis in ("tp", "sp", "cp"))
        if self._cluster.world_size % (tp * sp * cp):
            return None
        if cp not in (1, self._config.parallel.cp) and tp * sp < gcd(self._config.model.num_kv_heads, self._cluster.world_size):
            return None  # ring attention costs more than dividing heads
        try:
            candidate = parse_config(self._raw, "plan")
            check_cluster(candidate, self._cluster)
        except UserError:
            return None
        return Candidate(candidate, self._cluster, self._gpu, self._correction)


def saves_more(place: Place, other: Place) -> bool:
    """Whether a place is below another on the ladders that save memory, with the same ranks and stage."""
    return place[:FREE] == other[:FREE] and all(mine >= theirs for mine, theirs in zip(place, other, strict=True))


def _ladders(config: Config, cluster: ClusterConfig) -> list[list[Setting]]:
    """Return the values that are tried, including those of the configuration."""
    training = config.training
    parallel = config.parallel
    zero = config.zero
    offloads = {(False, False), (True, False), (True, True), (zero.offload_optimizer, zero.offload_parameters)}
    most = max(1, min(training.global_batch_size, LARGE // config.data.sequence_length))
    micro = {2**power for power in range(most.bit_length())} | {training.micro_batch_size}
    ranks = _divisors(cluster.world_size)
    few = max(1, config.data.sequence_length // SHORT)
    heads = {size for size in ranks if size <= few and config.model.num_kv_heads % size == 0}
    chunks = {size for size in ranks if size <= few}
    ladders: dict[str, Iterable[Any]] = {
        "parallel.tp": sorted({*_divisors(cluster.gpus_per_node), parallel.tp}),
        "zero.stage": (0, 1, 2, 3),
        "parallel.sp": sorted({*heads, parallel.sp}),
        "parallel.cp": sorted({*chunks, parallel.cp}),
        "training.micro_batch_size": sorted(micro, reverse=True),
        "training.activation_checkpointing": get_args(ActivationCheckpointing),
    }
    return [
        *([{key: value} for value in values] for key, values in ladders.items()),
        [{"zero.offload_optimizer": state, "zero.offload_parameters": weights} for state, weights in sorted(offloads)],
    ]


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number, in ascending order."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
