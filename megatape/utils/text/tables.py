"""Tables as text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from tabulate import tabulate


@dataclass(frozen=True)
class Table:
    """Table of text cells.

    Attributes:
        header: Column names, "" for the column of labels.
        rows: Label and cells of each row.
    """

    header: list[str]
    rows: list[tuple[str, list[str]]]

    @classmethod
    def of_columns(cls, columns: dict[str, dict[str, str]]) -> Self:
        """Create a table from columns, skipping empty rows.

        Args:
            columns: Column name -> row label -> cell. All columns have the same labels.
        """
        first_column = next(iter(columns.values()))
        rows: list[tuple[str, list[str]]] = []
        for label in first_column:
            cells = [column[label] for column in columns.values()]
            if any(cells):
                rows.append((label, cells))
        return cls(["", *columns], rows)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. Untrusted cells stay in their columns, because bars are escaped and line breaks removed.

    Args:
        header: Column names.
        rows: Cells of each row.
    """
    escaped_header = [_escape(cell) for cell in header]
    escaped_rows: list[list[str]] = []
    for row in rows:
        escaped_rows.append([_escape(cell) for cell in row])
    return tabulate(escaped_rows, escaped_header, tablefmt="github", disable_numparse=True)


def _escape(cell: str) -> str:
    line = " ".join(cell.split())
    return line.replace("|", "\\|")


def columns(rows: Iterable[Sequence[str]], header: Sequence[str] = (), align: Sequence[str] | None = None) -> str:
    """Return aligned columns. Cells may be indented.

    Args:
        rows: Cells of each row.
        header: Column names, none by default.
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
