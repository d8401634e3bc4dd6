"""Name of a run's attention backend, for messages and checkpoints."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionChoice:
    """Attention backend of the first layer.

    Attributes:
        name: Backend name.
        kernel: Name of its kernel on a GPU, or None if it has only one or runs on a CPU.
    """

    name: str
    kernel: str | None

    def __str__(self) -> str:
        if self.kernel is None:
            return self.name
        return f"{self.name} ({self.kernel})"
