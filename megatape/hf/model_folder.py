"""Folders that hold a model: what kind each one is, and its weights.

This module does not import transformers, which takes seconds, unless the weights are in a folder of transformers.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from megatape.checkpoint.manifest import MANIFEST
from megatape.errors import UserError
from megatape.hf.folder_name import check_model_folder
from megatape.hf.importing.record import IMPORT, open_import
from megatape.hf.weights.checkpoint_weights import CheckpointWeights
from megatape.hf.weights.model_weights import ModelWeights
from megatape.registry import FAMILIES
from megatape.run_folder import RunFolder
from megatape.utils.json_files import read_json


class FolderKind(Enum):
    """Kinds of folders that hold a model."""

    CHECKPOINT = "checkpoint"
    # A record that refers to a folder of transformers.
    IMPORT = "import"
    # A folder of transformers with the code of its model.
    EXPORT = "export"
    # A folder of any other model of transformers. Exported rotary models are of this kind, too.
    TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds a model.

    Attributes:
        kind: Kind of the folder.
        path: The folder.
        files: Folder with the model's files. For an import, the folder that it refers to.
        base: Present folder of a checkpoint's base if it was moved, else None.
    """

    kind: FolderKind
    path: Path
    files: Path
    base: Path | None = None

    def weights(self) -> ModelWeights:
        """Open the weights. Only headers and records are read.

        Raises:
            FileNotFoundError, UserError: Something is missing, corrupted or not supported.
        """
        if self.kind is FolderKind.CHECKPOINT:
            return CheckpointWeights(self.path, self.base)
        if self.kind is FolderKind.IMPORT:
            return open_import(self.path)
        # Imports transformers.
        from megatape.hf.pretrained import read_pretrained

        return read_pretrained(self.files).weights


def open_model_folder(path: Path, base: Path | None = None) -> ModelFolder:
    """Find out what kind of model folder this is. The content is checked when it is read.

    Args:
        path: The folder.
        base: Present folder of a checkpoint's base if it was moved.

    Raises:
        FileNotFoundError: The folder is missing, or the folder that an import refers to.
        UserError: The record of an import is corrupted, or `base` is given for another kind of folder.
    """
    if (path / MANIFEST).is_file() or RunFolder(path).list_checkpoints():
        return ModelFolder(FolderKind.CHECKPOINT, path, path, base)
    if base is not None:
        raise UserError(f"{path} is no checkpoint that holds only what was trained: leave out `base`")
    if (path / IMPORT).is_file():
        return ModelFolder(FolderKind.IMPORT, path, open_import(path).directory)
    check_model_folder(path)
    if _has_code(path):
        return ModelFolder(FolderKind.EXPORT, path, path)
    return ModelFolder(FolderKind.TRANSFORMERS, path, path)


def open_weights(path: Path, base: Path | None = None) -> ModelWeights:
    """Open the weights in a model folder. Raises as `open_model_folder` and `ModelFolder.weights`."""
    return open_model_folder(path, base).weights()


def _has_code(path: Path) -> bool:
    """Whether the model in a folder of transformers belongs to a family that is exported with its code."""
    try:
        model_type = read_json(path / "config.json")["model_type"]
        return FAMILIES[model_type].encodings is None
    except (OSError, ValueError, LookupError, TypeError):
        # Reading the model reports the error.
        return False
