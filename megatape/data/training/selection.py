"""Selects validation samples to evaluate on."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

Selection = Literal["first", "spread"]
SELECTIONS: tuple[Selection, ...] = get_args(Selection)
# Selection in new runs.
NEW_SELECTION: Selection = "spread"
# Selection in runs of earlier versions, which did not record it.
EARLIER_SELECTION: Selection = "first"

# Group, such as an input -> indices of its samples in the split.
SampleGroups = Mapping[str, Sequence[int]]


def select_samples(num_samples: int, count: int, selection: Selection) -> list[int]:
    """Choose samples from a split.

    Args:
        num_samples: Samples in the split.
        count: Samples to choose; all samples if the split has fewer.
        selection: `first`: the first samples in storage order. `spread`: evenly spaced samples, giving each part of the split,
            such as the documents from one input, its share.

    Returns:
        Sample indices, ascending.
    """
    count = min(count, num_samples)
    if selection == "first":
        return list(range(count))
    return [number * num_samples // count for number in range(count)]
