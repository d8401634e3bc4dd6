"""Temporary replacement of an attribute, for libraries that offer no argument in its place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced_attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute inside the block.

    Args:
        owner: Module, class or object that has the attribute.
        name: Name of the attribute.
        value: Replacement.

    Raises:
        AttributeError: There is no such attribute.
    """
    getattr(owner, name)
    # Not the result of getattr: it would bind methods, and might be inherited.
    is_own = name in vars(owner)
    earlier = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, earlier)
        else:
            delattr(owner, name)
