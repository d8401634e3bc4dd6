"""Marking test parameters that only run by `-m slow`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_but(quick: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return all values, marking those missing from `quick` as slow."""
    slow = pytest.mark.slow
    return [
        value if value in quick else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=slow)
        for value in values
    ]
