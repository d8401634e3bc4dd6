"""Base class of sequences whose items are read one at a time, for example from a file."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

Item = TypeVar("Item")


class LazySequence(Sequence[Item]):
    """A sequence that reads an item when it is used. Subclasses define `read_item` and `__len__`."""

    @abstractmethod
    def read_item(self, number: int) -> Item:
        """Return an item, given its number from 0 on, which is below the length."""

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        length = len(self)
        if isinstance(index, slice):
            return [self.read_item(number) for number in range(*index.indices(length))]
        if not -length <= index < length:
            raise IndexError(f"item {index} of {length}")
        return self.read_item(index % length)
