"""Weights of the corpora of a mixture, as integers."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from megatape.config.data import DataConfig
from megatape.data.training.schedule import Phase
from megatape.errors import UserError

# Maximum number of samples after which a schedule repeats. The start of a run makes a table of this size.
MAX_CYCLE = 100_000
# Number of samples after which a schedule with tempered weights repeats, approximately.
TEMPERED_CYCLE = 10_000


def first_weights(data: DataConfig, num_tokens: Mapping[str, int]) -> list[int]:
    """Return the weights before any annealing: those of the configuration, or else by the sizes of the corpora.

    Args:
        data: Section `data` of the configuration.
        num_tokens: Number of tokens of each corpus, by name.

    Returns:
        Weight of each corpus, in the order of `num_tokens`.

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
    """Return the phases of the schedule that follow the first weights.

    Args:
        data: Section `data` of the configuration.
        names: Names of the corpora in the order of their numbers.
        sequence_length: Tokens of a sample.

    Raises:
        UserError: The weights have no schedule.
    """
    phases = []
    for change in data.annealing:
        # A sample that begins before a change of the weights ends under the old ones.
        start = -(-change.tokens // sequence_length)
        weights = integer_weights([change.weights[name] for name in names])
        phases.append(Phase(start, weights))
    return phases


def integer_weights(weights: Sequence[float]) -> list[int]:
    """Return integers in exactly the proportions of decimal weights, such as 7 and 3 for 0.7 and 0.3.

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
    """Return positive integer weights in proportion to tokens^(1/temperature). Their sum is about TEMPERED_CYCLE.

    Args:
        tokens: Number of tokens of each corpus.
        temperature: 1 for weights by size. Higher temperatures give smaller corpora more weight.
    """
    sizes = np.array(tokens, np.float64)
    powers = np.exp(np.log(sizes / sizes.max()) / temperature)
    scaled = TEMPERED_CYCLE * powers / powers.sum()
    return [max(1, round(weight)) for weight in scaled.tolist()]
