"""Markdown tables."""

from collections.abc import Iterable


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    """Lines of a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))
