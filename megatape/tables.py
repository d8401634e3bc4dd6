"""Small tables as text."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def columns(rows: Iterable[Sequence[str]], header: Sequence[str] = (), align: Sequence[str] | None = None) -> str:
    """Aligned columns, whose cells may be indented. align: `left` or `right` for each column; left by default."""
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True, preserve_whitespace=True, colalign=align)
