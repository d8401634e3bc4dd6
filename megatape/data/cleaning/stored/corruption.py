"""Error about a file of a first pass whose content has changed since it was written."""

from pathlib import Path

from megatape.errors import UserError


def corrupted_first_pass(path: Path) -> UserError:
    """Return the error about a file in the folder of a first pass. The remedy is to remove the folder."""
    remedy = f"remove {path.parent}, and the same command prepares it again"
    return UserError(f"{path}: corrupted, its content is not what was written: {remedy}")
