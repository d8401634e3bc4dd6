"""Several pieces of text in one sample: which of them share one, so that little of it is padding, and how they are joined."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from megatape.data.training.dataset import Sample
from megatape.targets import IGNORE_INDEX


def pack(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """The examples of each sequence, where no sequence holds more than `capacity` tokens; a function of the lengths alone.

    lengths: int [E], at most `capacity`. Best fit decreasing: from the longest on, an example joins the sequence in which it
    leaves the least room. Sequences are in the order of their first examples, so that the first sequences are no selection
    by length.
    """
    sequences: list[list[int]] = []
    with_room: dict[int, list[int]] = defaultdict(list)  # sequences by the room that is left in them
    rooms: list[int] = []  # keys of with_room, in order
    for example in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[example])
        place = bisect_left(rooms, length)
        if place == len(rooms):
            sequence, room = len(sequences), capacity
            sequences.append([])
        else:
            room = rooms[place]
            sequence = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[place]
        sequences[sequence].append(example)
        left = room - length
        if left not in with_room:
            insort(rooms, left)
        with_room[left].append(sequence)
    return sorted(sorted(sequence) for sequence in sequences)


def joined(pieces: Iterable[tuple[np.ndarray, np.ndarray]], length: int, padding: int) -> Sample:
    """A sample of `length` places of pieces that do not see each other, and then padding, which has no targets.

    pieces: token ids [m + 1] and targets [m] of each, int64; its last token is a target and never an input.
    """
    tokens = np.full(length, padding, np.int64)
    targets = np.full(length, IGNORE_INDEX, np.int64)
    document_starts = np.empty(length, np.int64)
    place = 0
    for ids, learned in pieces:
        end = place + learned.size
        tokens[place:end], targets[place:end] = ids[:-1], learned
        document_starts[place:end] = place
        place = end
    document_starts[place:] = place
    return Sample(tokens, targets, document_starts)
