"""Verdict: the decision to end all ranks, and its cause."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, Self

from megatape.errors import ExitStatus, UserError
from megatape.reliability.watch.heartbeat import RankThread
from megatape.utils.text.url_secrets import mask_secrets

# Exit statuses allowed in a verdict. Others, such as 0, mean that the run is complete or should be resumed.
FAILURES = frozenset({ExitStatus.DIED, ExitStatus.USER_ERROR, ExitStatus.DIVERGED, ExitStatus.NOT_SAVED})


class FaultKind(Enum):
    """Kind of fault that ended the run."""

    # A rank reports its own exception.
    ERROR = "error"
    # A rank sends no heartbeats: it is dead, frozen or cut off.
    SILENT = "silent"
    # A rank sends heartbeats, but does not start the collective that other ranks wait for.
    HANGING = "hanging"
    # A collective failed, although all ranks are alive and none is behind.
    NETWORK = "network"
    # The store cannot be used: it has ended, does not answer, or another process writes to it.
    STORE = "store"


class Verdict(NamedTuple):
    """Decision to end all ranks.

    Attributes:
        kind: Kind of fault.
        cause: Description, naming the rank at fault.
        rank: Rank at fault, or None.
        thread: Its thread at fault.
        status: Exit status of all ranks.
    """

    kind: FaultKind
    cause: str
    rank: int | None = None
    thread: RankThread = RankThread.MAIN
    status: int = ExitStatus.DIED

    @property
    def is_diagnosis(self) -> bool:
        """Whether it is based on heartbeats, so that all ranks should write their stacks."""
        return self.kind in (FaultKind.SILENT, FaultKind.HANGING, FaultKind.NETWORK)

    @property
    def message(self) -> str:
        """Error message of the ranks that it ends."""
        if self.kind is FaultKind.STORE:
            return self.cause
        return f"{self.cause}; the run ends here, continue it with --resume auto"

    def accuses(self, rank: int) -> bool:
        """Whether it is based on this rank's heartbeats."""
        return self.is_diagnosis and self.rank == rank

    @classmethod
    def of_error(cls, rank: int, error: Exception) -> Self:
        """Return the verdict about a rank that raised an error."""
        status: int = ExitStatus.DIED
        if isinstance(error, UserError):
            status = error.status
        return cls(FaultKind.ERROR, f"rank {rank} failed: {describe_error(error)}", rank, status=status)

    def values(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.kind.value, self.cause, self.rank, self.thread.value, self.status]

    @classmethod
    def parse(cls, values: Sequence[Any]) -> Self:
        """Parse the values of a verdict. Its status is one of FAILURES, whatever was sent.

        Raises:
            TypeError, ValueError: The values are not a verdict.
        """
        kind, cause, rank, thread, status = values
        if not isinstance(cause, str) or not isinstance(rank, int | None):
            raise TypeError(f"neither a cause nor a rank: {cause!r:.80}, {rank!r:.80}")
        if status not in FAILURES:
            status = ExitStatus.DIED
        return cls(FaultKind(kind), cause, rank, RankThread(thread), status)


def describe_error(error: Exception) -> str:
    """Return type and first line of an error, without passwords."""
    first_line = str(error).strip().split("\n")[0]
    return mask_secrets(f"{type(error).__name__}: {first_line}")
