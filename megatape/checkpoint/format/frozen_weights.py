"""Base of a checkpoint: folder with frozen weights that the checkpoint leaves out.

If a run starts from other weights and freezes some of them, its checkpoints leave out the frozen ones. The manifest entry
`base` records where they are:

    folder      absolute path of the folder
    relative    path relative to the checkpoint, which stays valid if both are moved together
    files       size and sha256 of every file with frozen weights
    tensors     parameter -> file, name in the file, shape

The base contains all of these weights itself. A run starting from a checkpoint with a base uses the same base, and stores the
checkpoint's other weights. So there are no chains: a base never needs another base.
"""

import os
from pathlib import Path

from megatape.checkpoint.format.records import BaseRecord, FileRecord
from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.errors import CheckpointError, flag

ADVICE = f"put it back, or say where it is now with {flag('base')} DIR"


class FrozenWeights(StoredWeights):
    """Frozen weights that a checkpoint leaves out, in its base folder.

    Args:
        record: Manifest entry `base`.
        folder: Present folder.
        checkpoint: Checkpoint folder, for messages.
    """

    def __init__(self, record: BaseRecord, folder: Path, checkpoint: Path) -> None:
        super().__init__(folder, record.tensors, record.files)
        self._recorded_folder = record.folder
        self._checkpoint = checkpoint

    def verify(self, share: int, num_shares: int) -> None:
        """Verify the hashes of every `num_shares`-th file, starting with file `share`.

        Raises:
            CheckpointError: A file is missing, or differs from the one used for training.
        """
        try:
            for path, expected, present in self.hashed(share, num_shares):
                if present != expected:
                    raise CheckpointError(
                        f"{path} has sha256 {present.sha256[:12]}, but the base of {self._checkpoint}, which was trained with "
                        f"{self._recorded_folder}, has {expected.sha256[:12]} there: restore the file, or give the right "
                        f"folder with {flag('base')} DIR"
                    )
        except FileNotFoundError as error:
            raise CheckpointError(f"{error}, a part of the base of {self._checkpoint}: {ADVICE}") from None


def base_record(weights: StoredWeights, checkpoint: Path) -> BaseRecord:
    """Return the manifest entry `base`.

    Args:
        weights: Weights that the checkpoint leaves out.
        checkpoint: Final checkpoint folder.
    """
    folder = os.path.abspath(weights.directory)
    relative = os.path.relpath(folder, os.path.abspath(checkpoint))
    return BaseRecord(folder=folder, relative=relative, files=dict(weights.files), tensors=dict(weights.tensors))


def open_base(record: BaseRecord, checkpoint: Path, override: Path | None) -> FrozenWeights:
    """Open a checkpoint's base, checking file sizes. `FrozenWeights.verify` checks the content.

    Args:
        record: Manifest entry `base`.
        checkpoint: Checkpoint folder.
        override: Present folder, or None for the recorded one.

    Raises:
        CheckpointError: The folder or a file is missing, or a file has another size.
    """
    folder = _find_folder(record, checkpoint, override)
    for name, expected in record.files.items():
        reason = _mismatch(folder / name, expected)
        if reason is not None:
            raise CheckpointError(
                f"{folder} is not the base of {checkpoint}, which was trained with {record.folder}: {name} {reason}, and the "
                f"base's has {expected.bytes} bytes and sha256 {expected.sha256[:12]}: {ADVICE}"
            )
    return FrozenWeights(record, folder, checkpoint)


def _mismatch(path: Path, expected: FileRecord) -> str | None:
    """Return the reason why a file cannot be the expected one, or None."""
    if not path.is_file():
        return "is not there"
    size = path.stat().st_size
    if size != expected.bytes:
        return f"has {size} bytes"
    return None


def _find_folder(record: BaseRecord, checkpoint: Path, override: Path | None) -> Path:
    if override is not None:
        if not override.is_dir():
            raise _missing(record, checkpoint, f"{flag('base')} {override} is not a folder")
        return override

    recorded = Path(record.folder)
    if recorded.is_dir():
        return recorded
    if (checkpoint / record.relative).is_dir():
        return Path(os.path.normpath(checkpoint / record.relative))
    raise _missing(record, checkpoint, "there is no such folder")


def _missing(record: BaseRecord, checkpoint: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint} holds only what was trained. The rest is in its base {record.folder}, and {reason}: {ADVICE}"
    )
