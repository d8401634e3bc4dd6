"""Tables of results.

Ratios are to the fastest RoPE. All ways to run a case were measured in the same rounds as a common baseline, so their ratios to
it can be compared.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from megatape.lab.benchmark.gpu.results import Measurement, Results, measured
from megatape.lab.encodings import BASELINE
from megatape.utils.tables import markdown

MeasurementT = TypeVar("MeasurementT", bound=Measurement)
KeyT = TypeVar("KeyT", bound=tuple[object, ...])


def rows_of(results: Results, part: str, kind: type[MeasurementT]) -> Iterator[tuple[tuple[str, ...], MeasurementT]]:
    """Yield the measured results of a part, with the words of their keys.

    Args:
        results: Results by key.
        part: Name of the part.
        kind: Type of the part's results.
    """
    for key, result in results.items():
        if key.part == part and key.words and measured(result):
            yield key.words, kind.model_validate(result)


def titled(title: str, header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield a title and a table, unless the table is empty."""
    all_rows = list(rows)
    if all_rows:
        yield f"**{title}**"
        yield markdown(header, all_rows)


def over_rope(ratios: dict[KeyT, float]) -> dict[KeyT, float]:
    """Divide ratios to a common baseline by that of the fastest RoPE.

    Args:
        ratios: Ratios by key. The first item of a key is the encoding.

    Returns:
        The new ratios, none if RoPE is missing.
    """
    ratios_of_rope = [ratio for key, ratio in ratios.items() if key[0] == BASELINE]
    fastest = min(ratios_of_rope, default=0)
    if not fastest:
        return {}
    return {key: ratio / fastest for key, ratio in ratios.items()}
