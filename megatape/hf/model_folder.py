"""Model folders: their kinds, and access to their weights.

Importing transformers takes seconds, so this module imports it only if the weights are in a transformers folder.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from megatape.checkpoint.format.manifest import MANIFEST
from megatape.errors import UserError, flag
from megatape.hf.folder_name import check_model_folder
from megatape.hf.importing.record import IMPORT, open_import
from megatape.hf.weights.checkpoint_weights import CheckpointWeights
from megatape.hf.weights.model_weights import ModelWeights
from megatape.registry import FAMILIES
from megatape.run_folder import RunFolder
from megatape.utils.files.json_files import read_json


class FolderKind(Enum):
    """Kinds of model folders."""

    CHECKPOINT = "checkpoint"
    # Record that refers to a transformers folder.
    IMPORT = "import"
    # Transformers folder with its own model code.
    EXPORT = "export"
    # Any other transformers folder, including exported rotary models.
    TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class ModelFolder:
    """A folder that contains a model.

    Attributes:
        kind: Kind of folder.
        path: Path of the folder.
        files: Folder with the model's files. For an import, the folder that it refers to.
        base: New folder of a checkpoint's frozen base model, or None if it has not moved.
    """

    kind: FolderKind
    path: Path
    files: Path
    base: Path | None = None

    def weights(self) -> ModelWeights:
        """Open the weights, reading only headers and records.

        Raises:
            FileNotFoundError, UserError: A file is missing, corrupted or not supported.
        """
        if self.kind is FolderKind.CHECKPOINT:
            return CheckpointWeights(self.path, self.base)
        if self.kind is FolderKind.IMPORT:
            return open_import(self.path)
        # Import transformers only in this case.
        from megatape.hf.pretrained import read_pretrained

        return read_pretrained(self.files).weights


def open_model_folder(path: Path, base: Path | None = None) -> ModelFolder:
    """Determine the kind of a model folder. The content is checked when it is read.

    Args:
        path: Model folder.
        base: New folder of a checkpoint's frozen base model, if it has moved.

    Raises:
        FileNotFoundError: The folder is missing, or the folder that an import refers to.
        UserError: An import's record is corrupted, or `base` is given for another kind of folder.
    """
    if (path / MANIFEST).is_file() or RunFolder(path).list_checkpoints():
        return ModelFolder(FolderKind.CHECKPOINT, path, path, base)
    if base is not None:
        raise UserError(f"{path} is not a checkpoint that holds only what was trained: leave out {flag('base')}")
    if (path / IMPORT).is_file():
        return ModelFolder(FolderKind.IMPORT, path, open_import(path).directory)
    check_model_folder(path)
    if _has_code(path):
        return ModelFolder(FolderKind.EXPORT, path, path)
    return ModelFolder(FolderKind.TRANSFORMERS, path, path)


def open_weights(path: Path, base: Path | None = None) -> ModelWeights:
    """Open the weights in a model folder. Raises the errors of `open_model_folder` and `ModelFolder.weights`."""
    return open_model_folder(path, base).weights()


def _has_code(path: Path) -> bool:
    """Whether the model in a transformers folder belongs to a family whose exports contain model code."""
    try:
        model_type = read_json(path / "config.json")["model_type"]
        return FAMILIES[model_type].encodings is None
    except (OSError, ValueError, LookupError, TypeError):
        # Reading the model reports the error.
        return False
