"""Tables as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from tabulate import tabulate


@dataclass(frozen=True)
class Table:
    """Table of texts.

    Attributes:
        header: Names of the columns, "" for the column of labels.
        rows: Label and cells of each row.
    """

    header: list[str]
    rows: list[tuple[str, list[str]]]

    @classmethod
    def of_columns(cls, columns: dict[str, dict[str, str]]) -> Self:
        """Create a table from its columns. Rows without any text are skipped.

        Args:
            columns: Cells by name of the column and label of the row. All columns have the same labels.
        """
        first_column = next(iter(columns.values()))
        rows: list[tuple[str, list[str]]] = []
        for label in first_column:
            cells = [column[label] for column in columns.values()]
            if any(cells):
                rows.append((label, cells))
        return cls(["", *columns], rows)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Cells of unknown origin stay in their columns: bars are escaped, and a cell is one line.

    Args:
        header: Names of the columns.
        rows: Cells of each row.
    """
    escaped_header = [_escape(cell) for cell in header]
    escaped_rows: list[list[str]] = []
    for row in rows:
        escaped_rows.append([_escape(cell) for cell in row])
    return tabulate(escaped_rows, escaped_header, tablefmt="github", disable_numparse=True)


def _escape(cell: str) -> str:
    """Return a cell on one line, with escaped bars."""
    line = " ".join(cell.split())
    return line.replace("|", "\\|")


def columns(rows: Iterable[Sequence[str]], header: Sequence[str] = (), align: Sequence[str] | None = None) -> str:
    """Return aligned columns. Cells may be indented.

    Args:
        rows: Cells of each row.
        header: Names of the columns, none by default.
        align: `left` or `right` for each column, left by default.
    """
    return tabulate(
        rows,
        header,
        tablefmt="plain",
        disable_numparse=True,
        preserve_whitespace=True,
        colalign=align,
    )
