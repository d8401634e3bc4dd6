"""Covering arrays: few combinations of several factors' values, in which any few values meet."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]


def full_product(factors: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Every combination."""
    return (dict(zip(factors, values, strict=True)) for values in product(*factors.values()))


def covering_array(factors: Mapping[str, Sequence[str]], strength: int) -> list[Row]:
    """Combinations in which any values of `strength` factors meet at least once: 1 for each value, 2 for each pair.

    Chosen greedily, the same at every call: a row begins with values that have not met, and takes of each other factor the
    value that meets most others for the first time.
    """

    def met(row: Row) -> set[tuple[tuple[str, str], ...]]:
        named = [(name, row[name]) for name in factors if name in row]
        return set(combinations(named, strength))

    left = {
        group: None
        for names in combinations(factors, strength)
        for one in full_product({n: factors[n] for n in names})
        for group in met(one)
    }
    rows: list[Row] = []
    while left:
        row = dict(next(iter(left)))
        for name in sorted(factors.keys() - row.keys(), key=lambda name: -len(factors[name])):
            turned = len(rows) % len(factors[name])  # Equally good values take turns.
            values = [*factors[name][turned:], *factors[name][:turned]]
            row[name] = max(values, key=lambda value: len(met(row | {name: value}) & left.keys()))
        for group in met(row):
            left.pop(group, None)
        rows.append({name: row[name] for name in factors})
    return rows
