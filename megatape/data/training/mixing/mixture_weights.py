"""Integer weights for the corpora in a mixture."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from megatape.config.sections.data import DataConfig
from megatape.data.training.mixing.schedule import Phase
from megatape.errors import UserError
from megatape.utils.values.rounding import divide_up

# Maximum number of samples after which a schedule repeats. Starting a run builds a table of this size.
MAX_CYCLE = 100_000
# Approximate number of samples after which a schedule with tempered weights repeats.
TEMPERED_CYCLE = 10_000


def first_weights(data: DataConfig, num_tokens: Mapping[str, int]) -> list[int]:
    """Return the weights before any annealing: those in the configuration, or else weights by corpus size.

    Args:
        data: Configuration section `data`.
        num_tokens: Tokens in each corpus, by name.

    Returns:
        Each corpus's weight, ordered as in `num_tokens`.

    Raises:
        UserError: The weights have no schedule.
    """
    weights = {}
    for name, settings in data.corpora.items():
        if settings.weight is not None:
            weights[name] = settings.weight
    if not weights:
        return tempered_weights(list(num_tokens.values()), data.temperature)
    return integer_weights([weights[name] for name in num_tokens])


def annealing_phases(data: DataConfig, names: Sequence[str], sequence_length: int) -> list[Phase]:
    """Return the schedule's phases after the first weights.

    Args:
        data: Configuration section `data`.
        names: Corpus names, ordered by corpus number.
        sequence_length: Tokens per sample.

    Raises:
        UserError: The weights have no schedule.
    """
    phases = []
    for change in data.annealing:
        # A sample starting before the weights change still counts under the old ones.
        start = divide_up(change.tokens, sequence_length)
        weights = integer_weights([change.weights[name] for name in names])
        phases.append(Phase(start, weights))
    return phases


def integer_weights(weights: Sequence[float]) -> list[int]:
    """Convert decimal weights to integers in exactly the same proportions, such as 7 and 3 for 0.7 and 0.3.

    Raises:
        UserError: The sum of the integers would exceed MAX_CYCLE.
    """
    decimals = [Fraction(repr(weight)) for weight in weights]
    factor = lcm(*(decimal.denominator for decimal in decimals))
    multiples = [int(decimal * factor) for decimal in decimals]
    divisor = gcd(*multiples)
    integers = [multiple // divisor for multiple in multiples]
    cycle = sum(integers)
    if cycle > MAX_CYCLE:
        shown = ", ".join(map(str, weights))
        raise UserError(
            f"the weights {shown} repeat only after {cycle:,} samples, the most is {MAX_CYCLE:,}: round them to fewer digits"
        )
    return integers


def tempered_weights(tokens: Sequence[int], temperature: float) -> list[int]:
    """Return positive integer weights proportional to tokens^(1/temperature). Their sum is about TEMPERED_CYCLE.

    Args:
        tokens: Tokens in each corpus.
        temperature: 1 for weights by size. Higher temperatures favor smaller corpora.
    """
    sizes = np.array(tokens, np.float64)
    powers = np.exp(np.log(sizes / sizes.max()) / temperature)
    scaled = TEMPERED_CYCLE * powers / powers.sum()
    return [max(1, round(weight)) for weight in scaled.tolist()]
