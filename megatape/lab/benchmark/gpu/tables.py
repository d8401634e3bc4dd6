"""Rows and titles in table.md, and ratios to the fastest RoPE."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.encodings import BASELINE
from megatape.utils.text.tables import markdown


class Encoded(Protocol):
    """A case with an encoding."""

    @property
    def encoding(self) -> str:
        """Encoding name."""


CaseT = TypeVar("CaseT")
EncodedT = TypeVar("EncodedT", bound=Encoded)
MeasurementT = TypeVar("MeasurementT", bound=Measurement)


def measurements(
    results: Results,
    part: str,
    case: Callable[..., CaseT],
    figures: type[MeasurementT],
) -> Iterator[tuple[CaseT, MeasurementT]]:
    """Yield a part's measured cases, with their figures.

    Args:
        results: Results by key.
        part: Name of the part.
        case: Case type, called with the names.
        figures: Measurement class.
    """
    for key, result in results.items():
        if key.part == part and key.case and result.is_measured:
            yield case(*key.case), figures.model_validate(result.figures)


def label(*names: str) -> str:
    """Join a case's names, for tables with a single column for it."""
    return ", ".join(names)


def titled(title: str, header: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield a title and a table, unless it is empty."""
    all_rows = list(rows)
    if all_rows:
        yield f"**{title}**"
        yield markdown(header, all_rows)


def over_rope(ratios: dict[EncodedT, float]) -> dict[EncodedT, float]:
    """Convert ratios to a common baseline into ratios to the fastest RoPE. Returns none if RoPE is missing."""
    ratios_of_rope = [ratio for case, ratio in ratios.items() if case.encoding == BASELINE]
    fastest = min(ratios_of_rope, default=0)
    if not fastest:
        return {}
    return {case: ratio / fastest for case, ratio in ratios.items()}
