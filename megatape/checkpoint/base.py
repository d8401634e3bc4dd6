"""Base of a checkpoint: the folder of weights that a run froze and did not copy.

A run that starts from other weights and freezes some of them leaves the frozen ones out of its checkpoints. The manifest says
under `base` where they are:

    folder      absolute path of the folder
    relative    path relative to the checkpoint, which still fits if both were moved together
    files       size and sha256 of every file with such weights
    tensors     parameter -> file, name in the file, shape

The base has all of these weights itself. A run that starts from a checkpoint with a base has the same base, and stores all
other weights of that checkpoint. So no checkpoint depends on another one that depends on a third.
"""

import os
from pathlib import Path

from megatape.checkpoint.records import BaseRecord
from megatape.checkpoint.tensors import StoredWeights
from megatape.errors import CheckpointError

ADVICE = "put it back, or say where it is now with --base DIR"


class Base(StoredWeights):
    """Base of a checkpoint.

    Args:
        record: Entry `base` of the checkpoint's manifest.
        folder: Present folder of the base.
        checkpoint: Folder of the checkpoint, for messages.
    """

    def __init__(self, record: BaseRecord, folder: Path, checkpoint: Path) -> None:
        super().__init__(folder, record.tensors, record.files)
        self._recorded_folder = record.folder
        self._checkpoint = checkpoint

    def verify(self, share: int, shares: int) -> None:
        """Verify the hashes of every `shares`-th file, starting with file `share`.

        Raises:
            CheckpointError: A file is missing, or is not the one that the run was trained with.
        """
        try:
            for path, expected, found in self.hashed(share, shares):
                if found != expected:
                    raise CheckpointError(
                        f"{path} has sha256 {found.sha256[:12]}, but the base of {self._checkpoint}, which was trained with "
                        f"{self._recorded_folder}, has {expected.sha256[:12]} there: restore the file, or give the right "
                        "folder with --base DIR"
                    )
        except FileNotFoundError as error:
            raise CheckpointError(f"{error}, a part of the base of {self._checkpoint}: {ADVICE}") from None


def base_record(weights: StoredWeights, checkpoint: Path) -> BaseRecord:
    """Return the entry `base` of a manifest, for weights that a checkpoint leaves out.

    Args:
        weights: Weights that the checkpoint leaves out.
        checkpoint: Final folder of the checkpoint.
    """
    folder = os.path.abspath(weights.directory)
    relative = os.path.relpath(folder, os.path.abspath(checkpoint))
    return BaseRecord(folder=folder, relative=relative, files=dict(weights.files), tensors=dict(weights.tensors))


def open_base(record: BaseRecord, checkpoint: Path, override: Path | None) -> Base:
    """Open the base of a checkpoint. `Base.verify` compares the content of the files.

    Args:
        record: Entry `base` of the checkpoint's manifest.
        checkpoint: Folder of the checkpoint.
        override: Present folder of the base, None for the recorded one.

    Raises:
        CheckpointError: The folder is missing, or a file of the recorded size.
    """
    folder = _find_folder(record, checkpoint, override)
    for name, expected in record.files.items():
        path = folder / name
        if not path.is_file():
            fault = "is not there"
        elif path.stat().st_size != expected.bytes:
            fault = f"has {path.stat().st_size} bytes"
        else:
            continue
        raise CheckpointError(
            f"{folder} is not the base of {checkpoint}, which was trained with {record.folder}: {name} {fault}, and the base's "
            f"has {expected.bytes} bytes and sha256 {expected.sha256[:12]}: {ADVICE}"
        )
    return Base(record, folder, checkpoint)


def _find_folder(record: BaseRecord, checkpoint: Path, override: Path | None) -> Path:
    """Return the present folder of the base, see `open_base`."""
    if override is not None:
        if not override.is_dir():
            raise _missing(record, checkpoint, f"--base {override}")
        return override

    recorded = Path(record.folder)
    if recorded.is_dir():
        return recorded
    if (checkpoint / record.relative).is_dir():
        return Path(os.path.normpath(checkpoint / record.relative))
    raise _missing(record, checkpoint, "there")


def _missing(record: BaseRecord, checkpoint: Path, where: str) -> CheckpointError:
    """Return the error about a missing base."""
    return CheckpointError(
        f"{checkpoint} holds only what was trained. The rest is in its base {record.folder}, and {where} is no such folder: "
        f"{ADVICE}"
    )
