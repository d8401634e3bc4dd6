"""Errors that a user sees as one line."""

from megatape.errors.exit_status import ExitStatus


class UserError(ValueError):
    """An error that the user can correct. It says what is wrong, where, with which value, and what to do.

    Commands show it in one line. Any other exception is a fault of the program or the machine and keeps its traceback. The text
    is the only argument, so that ranks can exchange it.

    Attributes:
        status: Exit status of the command.
        everywhere: Whether all ranks raise it, so that only one of them shows it.
    """

    status = ExitStatus.USER_ERROR
    everywhere = False


class ConfigError(UserError):
    """A configuration is missing, malformed or contradicts itself."""


class CheckpointError(UserError):
    """A checkpoint cannot be used here, though its content may be intact: another version wrote it, or its base is missing."""


class RecordError(UserError):
    """A record of fine-tuning data does not match its format. It is counted and skipped."""


class RankMismatch(UserError):
    """Ranks were given different things, or one of them cannot begin. Raised on all ranks."""

    everywhere = True


class OutOfMemory(UserError):
    """A rank ran out of memory, or would run out of it in its first step."""


class LeaseLost(UserError):
    """Another run has taken over the run's folder, because this one gave no sign of life."""


class DataError(UserError):
    """A rank could not read its samples: a shard is missing or was changed, or its file system is away. Raised on all ranks."""

    status = ExitStatus.DIED
    everywhere = True


class TrainingDiverged(UserError):
    """Loss, gradient norm or weights have become NaN or infinite, or differ between replicas. Raised on all ranks."""

    status = ExitStatus.DIVERGED
    everywhere = True


class PathError(OSError, UserError):
    """A path or address given by the user cannot be read or written. It keeps the errno of its cause."""


class MissingPath(FileNotFoundError, PathError):
    """A path or address does not exist."""


class ExistingPath(FileExistsError, PathError):
    """A path exists already and must not be replaced."""


class NotSaved(PathError):
    """The last steps of a run are in no checkpoint, because none could be written. Raised on all ranks."""

    status = ExitStatus.NOT_SAVED
    everywhere = True
