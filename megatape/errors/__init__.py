"""Errors that commands show as one line, exit statuses, and the wording of advice."""

from typing import TYPE_CHECKING

from megatape.errors.conversion import content_errors, path_error, path_errors
from megatape.errors.exit_status import ExitStatus
from megatape.errors.user_errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ExistingPath,
    LeaseLost,
    MissingPath,
    NotSaved,
    OutOfMemory,
    PathError,
    RankMismatch,
    RecordError,
    TrainingDiverged,
    UserError,
)
from megatape.moved_modules import old_names

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ExistingPath",
    "ExitStatus",
    "LeaseLost",
    "MissingPath",
    "NotSaved",
    "OutOfMemory",
    "PathError",
    "RankMismatch",
    "RecordError",
    "TrainingDiverged",
    "UserError",
    "content_errors",
    "path_error",
    "path_errors",
]

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
