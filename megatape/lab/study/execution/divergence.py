"""Mark in the directory of a run that diverged. With the same settings, it would most likely diverge again."""

from pathlib import Path

from megatape.config import Config, ResumeRule, differences, load_recorded_config, save_config
from megatape.errors import UserError
from megatape.run_folder import RunFolder
from megatape.utils.files.atomic import write_atomically
from megatape.utils.files.files import read_regular

# Error that ended the training.
ERROR = "diverged.txt"
# Settings of the training.
SETTINGS = "diverged.json"


def error_file(folder: RunFolder) -> Path:
    """Return the file that marks a run directory."""
    return folder.directory / ERROR


def mark_diverged(folder: RunFolder, config: Config, error: str) -> str:
    """Mark a run directory.

    Args:
        folder: Run directory.
        config: Settings of the training.
        error: Error that ended the training.

    Returns:
        The message that `divergence` returns from now on.
    """
    save_config(config, folder.directory / SETTINGS)
    write_atomically(error_file(folder), f"{error}\n".encode())
    return _message(folder, error)


def remove_mark(folder: RunFolder) -> None:
    """Remove the mark of an earlier training, which had other settings."""
    for name in (ERROR, SETTINGS):
        (folder.directory / name).unlink(missing_ok=True)


def divergence(folder: RunFolder, config: Config) -> str | None:
    """Return a message about an earlier training with the same settings that diverged, or None.

    An earlier version recorded no settings. Its runs are trained again.

    Args:
        folder: Run directory.
        config: Settings of the run.
    """
    try:
        error = read_regular(error_file(folder)).decode(errors="replace").strip()
        recorded = load_recorded_config(folder.directory / SETTINGS)
    except (UserError, OSError):
        return None
    for field in differences(recorded, config):
        if field.rule not in (ResumeRule.FREE, ResumeRule.LOCAL):
            return None
    return _message(folder, error)


def _message(folder: RunFolder, error: str) -> str:
    path = error_file(folder)
    return f"training diverged with these settings, and is not repeated; {path} says: {error}; remove that file to train again"
