"""Names of the corpora of a run. The only corpus of `data.path` has an empty name."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def without_unnamed(values: Mapping[str, T]) -> dict[str, T]:
    """Return the values of named corpora. `data.path` has no name and is all of the data, so reports do not list it."""
    return {name: value for name, value in values.items() if name}
