"""Decision to end all ranks, with the fault that caused it."""

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, Self

from megatape.errors import ExitStatus, UserError
from megatape.reliability.watch.heartbeat import RankThread
from megatape.utils.url_secrets import mask_secrets

# Exit statuses allowed in a verdict. Others, such as 0, mean that the run is complete or will be resumed.
FAILURES = frozenset({ExitStatus.DIED, ExitStatus.USER_ERROR, ExitStatus.DIVERGED, ExitStatus.NOT_SAVED})


class FaultKind(Enum):
    """Kinds of faults that end a run."""

    # A rank reports its own exception.
    ERROR = "error"
    # A rank sends no heartbeats: it is dead, frozen or cut off.
    SILENT = "silent"
    # A rank sends heartbeats, but begins no collective for which other ranks wait.
    HANGING = "hanging"
    # A collective failed, although all ranks are alive and none is behind.
    NETWORK = "network"
    # The store cannot be used: it has ended, does not answer, or has values of another process.
    STORE = "store"


class Verdict(NamedTuple):
    """Decision to end all ranks.

    Attributes:
        kind: Kind of the fault.
        cause: Description of the fault, which names the rank at fault.
        rank: Rank at fault, None if there is none.
        thread: Thread of that rank.
        status: Exit status of all ranks.
    """

    kind: FaultKind
    cause: str
    rank: int | None = None
    thread: RankThread = RankThread.MAIN
    status: int = ExitStatus.DIED

    @property
    def is_diagnosis(self) -> bool:
        """Whether it was concluded from heartbeats, so that the stacks of all ranks are of interest."""
        return self.kind in (FaultKind.SILENT, FaultKind.HANGING, FaultKind.NETWORK)

    @property
    def message(self) -> str:
        """The error of the ranks that end because of it."""
        if self.kind is FaultKind.STORE:
            return self.cause
        return f"{self.cause}; the run ends here, continue it with --resume auto"

    def accuses(self, rank: int) -> bool:
        """Whether the heartbeats of this rank are the reason."""
        return self.is_diagnosis and self.rank == rank

    @classmethod
    def of_error(cls, rank: int, error: Exception) -> Self:
        """Return the verdict about a rank that ends with an error of its own."""
        status: int = ExitStatus.DIED
        if isinstance(error, UserError):
            status = error.status
        return cls(FaultKind.ERROR, f"rank {rank} failed: {describe_error(error)}", rank, status=status)

    def values(self) -> list[Any]:
        """Return it as JSON values."""
        return [self.kind.value, self.cause, self.rank, self.thread.value, self.status]

    @classmethod
    def parse(cls, values: Sequence[Any]) -> Self:
        """Return the verdict whose `values` were sent. Its status is one of FAILURES, whatever was sent.

        Raises:
            TypeError, ValueError: They are not those of a verdict.
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
