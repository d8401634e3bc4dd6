"""Small tables as text."""

from collections.abc import Iterable, Sequence

from tabulate import tabulate


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of a Markdown table."""
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


def columns(rows: Iterable[Sequence[str]], header: Sequence[str] = (), align: Sequence[str] | None = None) -> str:
    """Lines of aligned columns, whose cells may be indented. align: `left` or `right` for each column, by default left."""
    return tabulate(rows, header, tablefmt="plain", disable_numparse=True, preserve_whitespace=True, colalign=align)
