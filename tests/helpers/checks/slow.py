"""Parameters of a test that run by `-m slow` only."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """The values, of which the default suite takes only those in `quick`."""
    slow = pytest.mark.slow
    return [
        value if value in quick else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=slow)
        for value in values
    ]
