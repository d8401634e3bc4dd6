"""Selection of the validation samples on which a run is evaluated."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

Selection = Literal["first", "spread"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
# Selection of new runs.
NEW_SELECTION: Selection = "spread"
# Selection of earlier versions, which did not record it.
EARLIER_SELECTION: Selection = "first"

# Indices of a split's samples by group, such as their input.
SampleGroups = Mapping[str, Sequence[int]]


def select_samples(num_samples: int, count: int, selection: Selection) -> list[int]:
    """Choose samples of a split.

    Args:
        num_samples: Number of samples in the split.
        count: Number of samples to choose; the whole split if it has fewer.
        selection: `first`: the first samples in storage order. `spread`: evenly spaced samples, so that each part of the
            split, such as the documents of one input, has its share of them.

    Returns:
        Indices of the samples, ascending.
    """
    count = min(count, num_samples)
    if selection == "first":
        return list(range(count))
    return [number * num_samples // count for number in range(count)]
