"""Errors that commands show as one line."""

from megatape.errors.exit_status import ExitStatus


class UserError(ValueError):
    """An error that the user can correct. The message says what is wrong, where, with which value, and what to do.

    Commands show it in one line. Any other exception is a fault in the program or machine, and keeps its traceback. The message
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
    """A checkpoint cannot be used, though its content may be intact: another version wrote it, or its base is missing."""


class RecordError(UserError):
    """A fine-tuning record does not match its format. It is counted and skipped."""


class RankMismatch(UserError):
    """Ranks got different arguments, files or versions, or one of them cannot start. Raised on all ranks."""

    everywhere = True


class OutOfMemory(UserError):
    """A rank ran out of memory, or would in its first step."""


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


class MissingPath(FileNotFoundError, PathError):
    """A path or address does not exist."""


class ExistingPath(FileExistsError, PathError):
    """A path exists already and must not be replaced."""


class NotSaved(PathError):
    """A run's last steps are lost, because no checkpoint could be written. Raised on all ranks."""

    status = ExitStatus.NOT_SAVED
    everywhere = True
