"""Partial folders: checkpoints being written or removed. Their names never look like complete checkpoints."""

import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from megatape.reliability.lease import Lease
from megatape.reliability.lease.holder import NONCE_DIGITS
from megatape.run_environment import RunEnvironment
from megatape.utils.files.atomic import rename

# Suffix of partial folders.
PARTIAL = ".tmp"
# Seconds without a change after which a partial folder of an unknown process counts as abandoned.
STALE_SECONDS = 3600.0
# Names of partial folders made by processes with a lease.
_LEASED_NAME = re.compile(rf"step-\d+\.(\w+\.)*[0-9a-f]{{{NONCE_DIGITS}}}{re.escape(PARTIAL)}")


def partial_name(checkpoint: Path, lease: Lease) -> Path:
    """Return the path of a checkpoint's partial folder. The lease nonce in its name makes it unique to this process."""
    return checkpoint.with_name(f"{checkpoint.name}.{lease.nonce}{PARTIAL}")


def make_partial(environment: RunEnvironment, checkpoint: Path) -> Path:
    """Make an empty partial folder for a checkpoint, and remove abandoned partial folders of other processes.

    Args:
        environment: Run environment.
        checkpoint: Final checkpoint folder.

    Returns:
        The partial folder.

    Raises:
        LeaseLost: Another run has taken the lease.
        OSError: The folder cannot be made.
    """
    partial = partial_name(checkpoint, environment.lease)
    environment.lease.check()
    # A failed save of this process may have left a partial folder.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)

    # Time by the file system's clock, not this host's.
    now = partial.stat().st_mtime
    for path in environment.folder.checkpoints.glob(f"step-*{PARTIAL}"):
        if path == partial:
            continue
        # If removing fails now, a later save will try again.
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink() and _is_abandoned(path, now):
                shutil.rmtree(path)
    return partial


def hide(checkpoint: Path, lease: Lease) -> Path | None:
    """Rename a checkpoint to a partial folder before removing it, so that a half-removed one never looks like a checkpoint.

    Args:
        checkpoint: Checkpoint to rename. A symbolic link is removed at once.
        lease: The run's lease.

    Returns:
        The partial folder, or None if `checkpoint` was a link.
    """
    if checkpoint.is_symlink():
        checkpoint.unlink()
        return None
    unique = checkpoint.with_name(f"{checkpoint.name}.{secrets.token_hex(4)}")
    hidden = partial_name(unique, lease)
    rename(checkpoint, hidden)
    return hidden


def _is_abandoned(partial: Path, now: float) -> bool:
    """Whether a partial folder of another process is abandoned.

    A process with a lease has lost it, because this run holds the lease now. Earlier versions had no lease. Their folders, and
    those with unknown names, are abandoned after STALE_SECONDS without a change.
    """
    if _LEASED_NAME.fullmatch(partial.name):
        return True
    last_change = max(path.stat().st_mtime for path in (partial, *partial.iterdir()))
    return now - last_change > STALE_SECONDS
