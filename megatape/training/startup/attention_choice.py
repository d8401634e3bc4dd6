"""Attention backend of a run, for messages and checkpoints."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionChoice:
    """Attention backend of the first layer.

    Attributes:
        name: Name of the backend.
        kernel: Name of its kernel on a GPU, or "".
    """

    name: str
    kernel: str

    def __str__(self) -> str:
        if self.kernel:
            return f"{self.name} ({self.kernel})"
        return self.name
