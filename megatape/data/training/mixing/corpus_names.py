"""Corpus names. The only corpus of a run on `data.path` has an empty name."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def without_unnamed(values: Mapping[str, T]) -> dict[str, T]:
    """Return the values of named corpora. The unnamed one is all of the data, so reports do not list it."""
    return {name: value for name, value in values.items() if name}
