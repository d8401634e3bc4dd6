"""Reading Markdown tables."""


def cells(line: str) -> list[str]:
    """Return the text in each cell of a line."""
    return [cell.strip() for cell in line.split("|")[1:-1]]
