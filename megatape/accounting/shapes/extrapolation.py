"""Extrapolation from shallow models and short samples to a large run."""

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from megatape.config import ModelConfig

Key = TypeVar("Key")


def depths(model: ModelConfig) -> tuple[int, int]:
    """Return two depths from which to extrapolate the costs of a model.

    These are 2 and 3, because all layers but the last are alike. In a pattern of different layers, periods are alike: both
    depths end at the same place in a period as the model, and have at least two layers with the model's encoding.
    """
    period = len(model.pattern.kinds)
    if period == 1:
        return 2, 3
    first = 3 + (model.num_layers - 3) % period
    while num_layers_with_encoding(model, first) < 2:
        first += period
    return first, first + period


def num_layers_with_encoding(model: ModelConfig, num_layers: int) -> int:
    """Return how many of the first layers of a model have its encoding."""
    kinds = model.pattern.over(num_layers)
    return sum(kind.encoding == model.encoding for kind in kinds)


def extrapolate(counts: Mapping[int, int], x: int) -> int:
    """Evaluate an affine function at `x`, given two values: f(x) = f(a) + (f(b) - f(a)) (x - a) / (b - a).

    Args:
        counts: a -> f(a) and b -> f(b), integers.
        x: Argument.
    """
    (first, at_first), (second, at_second) = counts.items()
    return at_first + (at_second - at_first) * (x - first) // (second - first)


def extrapolate_all(counters: Mapping[int, Counter[Key]], x: int) -> Counter[Key]:
    """Extrapolate each key of two counters. Missing keys count as 0.

    Args:
        counters: a -> counter at a, and b -> counter at b.
        x: Argument.
    """
    # Keys in the order of their first appearance.
    keys: dict[Key, None] = {}
    for counter in counters.values():
        keys |= dict.fromkeys(counter)
    result: Counter[Key] = Counter()
    for key in keys:
        counts = {argument: counter[key] for argument, counter in counters.items()}
        result[key] = extrapolate(counts, x)
    return result


def scaled(counter: Counter[Key], times: int) -> Counter[Key]:
    """Multiply each count."""
    return Counter({key: count * times for key, count in counter.items()})
