"""A supervised command, and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class EndedCommand:
    """Exit statuses of a command, as shells number them.

    Attributes:
        status: Exit status of the command.
        orphan_statuses: Exit statuses of its orphans, except those killed after a timeout.
        cause: Clause about the failure, "" if it is unknown or the command has not failed.
    """

    status: int
    orphan_statuses: Sequence[int] = ()
    cause: str = ""


class RunningCommand(Protocol):
    """A command that trains a run."""

    def send(self, number: int) -> None:
        """Send a signal to the command, unless it has ended."""

    def wait(self) -> EndedCommand:
        """Wait until the command and all its processes have ended."""
