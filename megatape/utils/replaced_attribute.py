"""Replaces an attribute temporarily, for libraries that offer no argument for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced_attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute inside the block.

    Args:
        owner: Module, class or object.
        name: Attribute.
        value: Replacement.

    Raises:
        AttributeError: The attribute does not exist.
    """
    getattr(owner, name)
    # Take the earlier value from vars, because getattr would bind methods and include inherited attributes.
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
