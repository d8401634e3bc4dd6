"""Reading Markdown tables."""


def cells(line: str) -> list[str]:
    """The texts of a line's cells."""
    return [cell.strip() for cell in line.split("|")[1:-1]]
