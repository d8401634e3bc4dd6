"""Counts of a large run, extrapolated from shallow models and short samples."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from megatape.config import ModelConfig

Key = TypeVar("Key")


def depths(model: ModelConfig) -> tuple[int, int]:
    """Return two depths from which the costs of a model's layers can be extrapolated.

    These are 2 and 3, because all layers but the last are alike. With model.nope_every all periods of layers are alike. Then
    both depths end where the model ends in its period, with at least two layers that have positions.
    """
    every = model.nope_every
    if not every:
        return 2, 3
    first = 3 + (model.num_layers - 3) % every
    return first, first + every


def extrapolate(counts: Mapping[int, int], x: int) -> int:
    """Return an affine function f at `x`, given f(a) and f(b): f(x) = f(a) + (f(b) - f(a)) (x - a) / (b - a).

    Args:
        counts: a -> f(a) and b -> f(b). All values are integers.
        x: Place of the result.
    """
    (first, at_first), (second, at_second) = counts.items()
    return at_first + (at_second - at_first) * (x - first) // (second - first)


def extrapolate_all(counters: Mapping[int, Counter[Key]], x: int) -> Counter[Key]:
    """Extrapolate each key of two counters. Missing keys count as 0.

    Args:
        counters: Two places, and the counter at each.
        x: Place of the result.
    """
    keys = dict.fromkeys(key for counter in counters.values() for key in counter)
    result: Counter[Key] = Counter()
    for key in keys:
        counts = {place: counter[key] for place, counter in counters.items()}
        result[key] = extrapolate(counts, x)
    return result


def scaled(counter: Counter[Key], times: int) -> Counter[Key]:
    """Return a counter with each count multiplied."""
    return Counter({key: count * times for key, count in counter.items()})
