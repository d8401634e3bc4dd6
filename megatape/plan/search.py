"""The fastest settings of a run that fit a cluster, and the smallest change that makes a run fit.

A setting is a position on a ladder. On most ladders each step saves memory and costs time, so the fastest candidates are found
by going down from the top: none is faster than those above it, and what is below one that fits is never looked at. The first
ladders have no such order: every combination of them has a top of its own.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import product
from math import gcd, prod, sqrt
from operator import ne
from typing import Any, get_args

from megatape.config import ActivationCheckpointing, ClusterConfig, Config, parse_config
from megatape.errors import UserError
from megatape.plan.gpus import Gpu
from megatape.plan.memory import Memory, plan_memory
from megatape.plan.speed import plan_speed
from megatape.units import format_bytes, plural

# Device memory beyond the model's: contexts of the driver and the libraries, and what the allocator cannot use.
CONTEXT, FRAGMENTATION = 1.5 * 2**30, 0.05

Place = tuple[int, ...]  # on each ladder
Setting = dict[str, Any]  # section.key -> value
FREE = 2  # ladders without an order, which come first: tensor-parallel ranks and stages, of which more may be faster
SECTIONS = ("parallel", "zero", "training")  # in which these are
LARGE = 2**16  # tokens of a micro-batch, of which more change the time of a step by less than its estimate can say


@dataclass(frozen=True)
class Need:
    """Bytes needed, and available if the cluster says so."""

    bytes: float
    available: float | None

    @property
    def fits(self) -> bool:
        return self.available is None or self.bytes <= self.available

    def __str__(self) -> str:
        if self.available is None:
            return f"{format_bytes(self.bytes)}; cluster.host_gib (--host-gib) compares it with the node's"
        return f"{format_bytes(self.bytes)} of {format_bytes(self.available)}: {'fits' if self.fits else 'DOES NOT FIT'}"


def memory_needs(memory: Memory, cluster: ClusterConfig, gpu: Gpu) -> dict[str, Need]:
    """Of device memory, with that beyond the model's, and of host memory, of all ranks of a node, where state is kept there."""
    needs = {"of a GPU": Need(memory.device_total + CONTEXT + FRAGMENTATION * gpu.memory, gpu.memory)}
    if memory.host:
        available = None if cluster.host_gib is None else cluster.host_gib * 2**30
        needs["of a node's host"] = Need(sum(memory.host.values()) * cluster.gpus_per_node, available)
    return needs


def check_cluster(config: Config, cluster: ClusterConfig) -> None:
    """Raise UserError unless the ranks of a sample fill nodes evenly, and batches divide among the others."""
    parallel, node = config.parallel, cluster.gpus_per_node
    sizes = {"parallel.tp": parallel.tp, "parallel.tp x parallel.sp": parallel.tp * parallel.sp}
    sizes["parallel.tp x parallel.sp x parallel.cp"] = parallel.sample_ranks
    for name, size in sizes.items():
        if size % node and node % size:
            raise UserError(
                f"{name} {size} and {plural(node, 'GPU')} per node: one must divide the other, for ranks to fill nodes evenly"
            )
    config.accumulation(cluster.world_size)


@dataclass(frozen=True)
class Candidate:
    """Settings on a cluster. correction: as `plan_speed` has it."""

    config: Config
    cluster: ClusterConfig
    gpu: Gpu
    correction: float | None = None

    @cached_property
    def needs(self) -> dict[str, Need]:
        """Memory by where it is."""
        return memory_needs(plan_memory(self.config, self.cluster.world_size, on_gpu=True), self.cluster, self.gpu)

    @property
    def of_gpu(self) -> Need:
        return self.needs["of a GPU"]

    @property
    def fits(self) -> bool:
        return all(need.fits for need in self.needs.values())

    @cached_property
    def speed(self) -> tuple[float, float]:
        """Seconds of a step, (low, high)."""
        return plan_speed(self.config, self.cluster, self.gpu, self.correction).seconds

    @property
    def seconds(self) -> float:
        """The middle of that range."""
        return sqrt(prod(self.speed))


class Space:
    """The settings of a run that its model, its batch and a cluster allow.

    Args:
        config: The configuration that they are around.
        cluster: The machines.
        gpu: Their GPU.
        correction: As `plan_speed` has it.

    Attributes:
        ladders: values of one setting, or of some that change together; all but the first two from fast to small.
        valid: candidates by place.
        start: place of the configuration itself, which may be invalid.
    """

    def __init__(self, config: Config, cluster: ClusterConfig, gpu: Gpu, correction: float | None = None) -> None:
        raw, self.ladders, self.valid = config.model_dump(), _ladders(config, cluster), dict[Place, Candidate]()
        stated = {f"{section}.{name}": value for section in SECTIONS for name, value in raw[section].items()}
        self.start = tuple(ladder.index({key: stated[key] for key in ladder[0]}) for ladder in self.ladders)
        for place in product(*(range(len(ladder)) for ladder in self.ladders)):
            for setting, at in zip(self.ladders, place, strict=True):
                for key, value in setting[at].items():
                    section, _, name = key.partition(".")
                    raw[section][name] = value
            tp, sp, cp = (raw["parallel"][axis] for axis in ("tp", "sp", "cp"))
            if cp not in (1, config.parallel.cp) and tp * sp < gcd(config.model.num_kv_heads, cluster.world_size):
                continue  # ring attention costs more than to divide heads
            try:
                candidate = parse_config(raw, "plan")
                check_cluster(candidate, cluster)
            except UserError:  # the ranks do not divide something
                continue
            self.valid[place] = Candidate(candidate, cluster, gpu, correction)

    def changes(self, place: Place) -> Setting:
        """The settings at a place that differ from the configuration's."""
        steps = zip(self.ladders, self.start, place, strict=True)
        return {key: value for ladder, old, new in steps for key, value in ladder[new].items() if value != ladder[old][key]}

    def fastest(self) -> Iterator[Place]:
        """The places that fit, the fastest first, without those that save more than another one that fits."""
        fitting: list[Place] = []
        least = {place[:FREE]: candidate for place, candidate in self.valid.items()}  # memory: that of the last place
        seen = {(*free, *(0 for _ in self.ladders[FREE:])) for free, candidate in least.items() if candidate.of_gpu.fits}
        waiting = [(0.0, False, top) for top in seen]
        while waiting:
            seconds, timed, place = heappop(waiting)
            if timed:
                yield place
                continue
            if any(saves_more(place, other) for other in fitting):
                continue
            candidate = self.valid.get(place)
            if candidate is not None and candidate.fits:
                fitting.append(place)
                heappush(waiting, (candidate.seconds, True, place))
                continue
            if candidate is not None and not any(place[FREE:]):
                seconds = candidate.seconds  # those below are no faster
            for number in range(FREE, len(place)):
                below = (*place[:number], place[number] + 1, *place[number + 1 :])
                if below not in seen and below[number] < len(self.ladders[number]):
                    seen.add(below)
                    heappush(waiting, (seconds, False, below))

    def smallest_change(self) -> Place | None:
        """The place that fits and differs from the configuration in the fewest settings; of several the fastest."""
        by_changes: defaultdict[tuple[bool, ...], list[Place]] = defaultdict(list)
        for place in self.valid:
            by_changes[tuple(map(ne, self.start, place))].append(place)
        for size in range(1, len(self.start) + 1):
            groups = [places for changed, places in by_changes.items() if sum(changed) == size]
            # The last of each has the least memory of a GPU.
            possible = [place for places in groups if self.valid[places[-1]].of_gpu.fits for place in places]
            if fitting := [place for place in possible if self.valid[place].fits]:
                return min(fitting, key=lambda place: self.valid[place].seconds)
        return None


def saves_more(place: Place, other: Place) -> bool:
    """Whether a place is below another on the ladders that save memory, with the same ranks and stage."""
    return place[:FREE] == other[:FREE] and all(mine >= theirs for mine, theirs in zip(place, other, strict=True))


def _ladders(config: Config, cluster: ClusterConfig) -> list[list[Setting]]:
    """The values that are tried, those of the configuration among them."""
    training, parallel, zero = config.training, config.parallel, config.zero
    offloads = {(False, False), (True, False), (True, True), (zero.offload_optimizer, zero.offload_parameters)}
    most = max(1, min(training.global_batch_size, LARGE // config.data.sequence_length))
    micro = {2**power for power in range(most.bit_length())} | {training.micro_batch_size}
    ladders: dict[str, Iterable[Any]] = {
        "parallel.tp": sorted({*_divisors(cluster.gpus_per_node), parallel.tp}),
        "zero.stage": (0, 1, 2, 3),
        "parallel.sp": sorted({*_divisors(cluster.world_size), parallel.sp}),
        "parallel.cp": sorted({*_divisors(cluster.world_size), parallel.cp}),
        "training.micro_batch_size": sorted(micro, reverse=True),
        "training.activation_checkpointing": get_args(ActivationCheckpointing),
    }
    return [
        *([{key: value} for value in values] for key, values in ladders.items()),
        [{"zero.offload_optimizer": state, "zero.offload_parameters": weights} for state, weights in sorted(offloads)],
    ]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
