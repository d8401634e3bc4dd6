"""Base class of read-only streams with a position."""

import io
from abc import abstractmethod
from typing import Any


class RawStream(io.RawIOBase):
    """A read-only stream. Subclasses implement `seek` and `_next_bytes`."""

    def __init__(self) -> None:
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        content = b""
        if len(buffer):
            content = self._next_bytes(len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    @abstractmethod
    def _next_bytes(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` at the position, at least one byte before the end."""
