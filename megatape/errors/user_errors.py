"""Errors that commands show as one line."""

from typing import Self

from megatape.errors.exit_status import ExitStatus
from megatape.errors.flags import name_options


class UserError(ValueError):
    """An error that the user can correct. The message says what is wrong, where, with which value, and what to do.

    Commands show it in one line. Any other exception is a fault in the program or machine, and keeps its traceback. The message
    is the only argument, so that ranks can exchange it. It marks options by `flag` (megatape/errors/flags.py), and `str` shows
    their names.

    A subclass sets the attributes below for all of its errors. Only functions that raise one rank's error on all ranks
    (megatape/distributed/values/exchange.py) set `everywhere` on a single error.

    Attributes:
        status: Exit status of the command.
        everywhere: Whether all ranks raise it, so that only one of them shows it.
    """

    status = ExitStatus.USER_ERROR
    everywhere = False

    def __str__(self) -> str:
        return name_options(marked_message(self))


def marked_message(error: Exception) -> str:
    """Return the message of an error, with marked options. Use it instead of `str` to make another error with this message."""
    if isinstance(error, UserError):
        # A PathError also inherits OSError's method, which would show a path instead of the message.
        return BaseException.__str__(error)
    return str(error)


class ConfigError(UserError):
    """A configuration is missing, malformed or contradicts itself."""


class CheckpointError(UserError):
    """A checkpoint cannot be used, though its content may be intact: another version wrote it, or its base is missing."""


class RecordError(UserError):
    """A fine-tuning record does not match its format. It is counted and skipped."""


class RankMismatch(UserError):
    """Ranks got different arguments, files or versions, or one of them cannot start. Raised on all ranks."""

    everywhere = True


class OutOfMemory(UserError):
    """A rank ran out of memory before the end of its first step, so another start would, too."""


class OutOfMemoryInStep(OutOfMemory):
    """A rank ran out of memory after a step that had enough, so another start may succeed."""

    status = ExitStatus.DIED


class InsufficientMemory(OutOfMemory):
    """The free memory does not suffice for a run. Raised on all ranks before the first step."""

    everywhere = True


class LeaseLost(UserError):
    """Another run has taken over the run directory, because this one gave no sign of life."""


class DataError(UserError):
    """A rank cannot read its samples: a shard is missing or changed, or the file system is away. Raised on all ranks."""

    status = ExitStatus.DIED
    everywhere = True


class TrainingDiverged(UserError):
    """Loss, gradient norm or weights are not finite, or differ between replicas. Raised on all ranks."""

    status = ExitStatus.DIVERGED
    everywhere = True


class PathError(OSError, UserError):
    """A path or address from the user cannot be read or written. It keeps its cause's errno."""

    __str__ = UserError.__str__

    @classmethod
    def like(cls, error: OSError, text: str) -> Self:
        """Return an error with the errno of another one, raised on the same ranks.

        Args:
            error: The other error.
            text: Message.
        """
        converted = cls(text)
        converted.errno = error.errno
        converted.everywhere = getattr(error, "everywhere", False)
        return converted


class MissingPath(FileNotFoundError, PathError):
    """A path or address does not exist."""


class ExistingPath(FileExistsError, PathError):
    """A path exists already and must not be replaced."""


class NotSaved(PathError):
    """A run's last steps are lost, because no checkpoint could be written. Raised on all ranks."""

    status = ExitStatus.NOT_SAVED
    everywhere = True
