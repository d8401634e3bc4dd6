"""Integer division that rounds up."""


def divide_up(number: int, divisor: int) -> int:
    """Return number / divisor, rounded up."""
    return -(-number // divisor)


def round_up(number: int, multiple: int) -> int:
    """Return the next multiple that is not below the number."""
    return divide_up(number, multiple) * multiple
