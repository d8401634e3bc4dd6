"""Reading Markdown tables."""


def cells(line: str) -> list[str]:
    """Texts of the cells of a line."""
    return [cell.strip() for cell in line.split("|")[1:-1]]
