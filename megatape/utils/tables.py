"""Small tables as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from tabulate import tabulate


@dataclass(frozen=True)
class Table:
    """Cells as text. rows: a label and its cells."""

    header: list[str]
    rows: list[tuple[str, list[str]]]

    @classmethod
    def of_columns(cls, columns: dict[str, dict[str, str]]) -> Self:
        """From name -> row -> cell, with the same rows in each; rows of nothing but empty cells are left out."""
        rows = [row for row in next(iter(columns.values())) if any(cells[row] for cells in columns.values())]
        return cls(["", *columns], [(row, [cells[row] for cells in columns.values()]) for row in rows])


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Cells of unknown origin stay in their columns: bars are escaped, and a cell is one line."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    return tabulate(cells[1:], cells[0], tablefmt="github", disable_numparse=True)


def columns(rows: Iterable[Sequence[str]], header: Sequence[str] = (), align: Sequence[str] | None = None) -> str:
    """Aligned columns, whose cells may be indented. align: `left` or `right` for each column; left by default."""
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True, preserve_whitespace=True, colalign=align)
