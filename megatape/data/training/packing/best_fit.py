"""Packs spans into samples by best fit decreasing."""

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Packing:
    """Spans in each sample.

    Attributes:
        order: Span numbers, sample after sample, int64 [spans].
        sizes: Spans per sample, int64 [samples].
    """

    order: np.ndarray
    sizes: np.ndarray


def pack(lengths: np.ndarray, capacity: int) -> Packing:
    """Pack spans into samples of at most `capacity` inputs. The result depends on the lengths alone.

    Starting with the longest span, each one joins the sample in which it leaves the least room. Spans of equal length are
    assigned together: they fill one sample after another, because a sample with room for one more stays the best fit. Sorting
    samples by their first spans keeps the first samples from being a selection by length.

    Args:
        lengths: Inputs per span, 1 to `capacity`, int [spans].
        capacity: Inputs per sample.
    """
    # 16-bit keys sort fast.
    keys = (capacity - lengths).astype(np.min_scalar_type(capacity))
    by_length = np.argsort(keys, kind="stable")
    samples_of_spans = np.empty(lengths.size, np.int64)
    samples_of_spans[by_length] = _assign(lengths[by_length], capacity)
    num_samples = int(samples_of_spans.max(initial=-1)) + 1
    # First span of each sample. Assigning in reverse order lets the first span win.
    first = np.empty(num_samples, np.int64)
    first[samples_of_spans[::-1]] = np.arange(lengths.size)[::-1]
    order = np.argsort(first[samples_of_spans], kind="stable")
    sizes = np.bincount(samples_of_spans)[np.argsort(first)]
    return Packing(order, sizes)


def _assign(descending: np.ndarray, capacity: int) -> list[int]:
    """Return the sample of each span, given the lengths in descending order."""
    # Ends of the groups with equally long spans.
    ends = np.flatnonzero(np.diff(descending, append=0)) + 1
    # Samples by free room, and the keys of this mapping in ascending order.
    with_room: dict[int, list[int]] = defaultdict(list)
    rooms: list[int] = []
    sample_of: list[int] = []
    num_samples = 0
    for length, end in zip(descending[ends - 1].tolist(), ends.tolist(), strict=True):
        while len(sample_of) < end:
            num_left = end - len(sample_of)
            index = bisect_left(rooms, length)
            has_room = index < len(rooms)
            room = capacity
            if has_room:
                room = rooms[index]
            # How many of these spans fit into a sample, and how many samples all of them need.
            per_sample = room // length
            num_wanted = -(num_left // -per_sample)
            if has_room:
                # The latest samples come first.
                samples = with_room[room][: -num_wanted - 1 : -1]
                del with_room[room][-num_wanted:]
                if not with_room[room]:
                    del with_room[room]
                    del rooms[index]
            else:
                samples = list(range(num_samples, num_samples + num_wanted))
                num_samples += num_wanted
            assigned = np.repeat(samples, per_sample)[:num_left].tolist()
            sample_of += assigned

            num_in_last = len(assigned) - per_sample * (len(samples) - 1)
            remaining = [
                (room - per_sample * length, samples[:-1]),
                (room - num_in_last * length, samples[-1:]),
            ]
            for room_left, filled in remaining:
                if not filled:
                    continue
                if room_left not in with_room:
                    insort(rooms, room_left)
                with_room[room_left] += filled
    return sample_of


def alone(num_spans: int) -> Packing:
    """Return samples with one span each."""
    return Packing(order=np.arange(num_spans), sizes=np.ones(num_spans, np.int64))
