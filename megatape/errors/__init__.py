"""Errors that commands show as one line, exit statuses, and the wording of advice.

user_errors.py   classes of errors that the user can correct
exit_status.py   exit statuses of commands
conversion.py    other errors, converted into UserErrors
flags.py         options in messages, shown as flags by commands
suggestions.py   advice about unknown names
text_checks.py   checks of text for scripts, command lines and files
"""

from megatape.errors.conversion import content_errors, path_error, path_errors
from megatape.errors.exit_status import ExitStatus
from megatape.errors.flags import flag
from megatape.errors.user_errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ExistingPath,
    InsufficientMemory,
    LeaseLost,
    MissingPath,
    NotSaved,
    OutOfMemory,
    OutOfMemoryInStep,
    PathError,
    RankMismatch,
    RecordError,
    TrainingDiverged,
    UserError,
    marked_message,
)

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ExistingPath",
    "ExitStatus",
    "InsufficientMemory",
    "LeaseLost",
    "MissingPath",
    "NotSaved",
    "OutOfMemory",
    "OutOfMemoryInStep",
    "PathError",
    "RankMismatch",
    "RecordError",
    "TrainingDiverged",
    "UserError",
    "content_errors",
    "flag",
    "marked_message",
    "path_error",
    "path_errors",
]
