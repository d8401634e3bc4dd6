"""The base of a checkpoint: the folder of weights that its run froze and did not copy.

A run that starts from other weights and freezes some of them leaves these out of its checkpoints. The manifest has, under
`base`, where they are and the hashes of their files:

    folder      the folder, as an absolute path
    relative    the same, seen from the checkpoint: it still fits when both were moved together
    files       size and sha256 of every file that holds some of them
    tensors     parameter -> file, name there, shape

The folder holds them itself. A run that starts from a checkpoint with a base has the same base, and stores whatever that
checkpoint holds beyond it; so no checkpoint depends on another one that depends on a third.
"""

import os
from pathlib import Path
from typing import Any

from megatape.checkpoint.manifest import BaseRecord
from megatape.checkpoint.weights import StoredWeights
from megatape.errors import CheckpointError

_ADVICE = "put it back, or say where it is now with --base DIR"


class Base(StoredWeights):
    """The base of the checkpoint in `checkpoint`, which is in `folder` now."""

    def __init__(self, record: BaseRecord, folder: Path, checkpoint: Path) -> None:
        super().__init__(folder, record.tensors, record.files)
        self.recorded, self.checkpoint = record.folder, checkpoint

    def verify(self, share: int, shares: int) -> None:
        """Hash every `shares`-th file, beginning with number `share`. Raises CheckpointError for one that is not the base's."""
        try:
            for path, expected, found in self.hashed(share, shares):
                if found != expected:
                    raise CheckpointError(
                        f"{path} has sha256 {found.sha256[:12]}, but the base of {self.checkpoint}, which was trained with "
                        f"{self.recorded}, has {expected.sha256[:12]} there: restore the file, or give the right folder with "
                        "--base DIR"
                    )
        except FileNotFoundError as error:
            raise CheckpointError(f"{error}, a part of the base of {self.checkpoint}: {_ADVICE}") from None


def describe_base(weights: StoredWeights, checkpoint: Path) -> dict[str, Any]:
    """The entry `base` for a manifest of the checkpoint that is written to `checkpoint`."""
    folder = os.path.abspath(weights.directory)
    relative = os.path.relpath(folder, os.path.abspath(checkpoint))
    record = BaseRecord(folder=folder, relative=relative, files=dict(weights.files), tensors=dict(weights.tensors))
    return record.model_dump(mode="json")


def open_base(record: BaseRecord, checkpoint: Path, override: Path | None) -> Base:
    """The base of the checkpoint in `checkpoint`, in the folder `override` or else where the manifest says it is.

    Raises CheckpointError if the folder, or a file of its recorded size, is not there. `Base.verify` compares the content.
    """
    folder = override or Path(record.folder)
    if override is None and not folder.is_dir() and (checkpoint / record.relative).is_dir():
        folder = Path(os.path.normpath(checkpoint / record.relative))
    if not folder.is_dir():
        raise CheckpointError(
            f"{checkpoint} holds only what was trained. The rest is in its base {record.folder}, and "
            f"{'there' if override is None else f'--base {override}'} is no such folder: {_ADVICE}"
        )
    for name, expected in record.files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != expected.bytes:
            raise CheckpointError(
                f"{folder} is not the base of {checkpoint}, which was trained with {record.folder}: {name} "
                f"{'is not there' if size is None else f'has {size} bytes'}, and the base's has {expected.bytes} bytes and "
                f"sha256 {expected.sha256[:12]}: {_ADVICE}"
            )
    return Base(record, folder, checkpoint)
