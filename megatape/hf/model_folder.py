"""Folders that hold a model: what kind each one is, and its weights.

This module does not import transformers, which takes seconds, unless the weights are in a folder of transformers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megatape.checkpoint.manifest import MANIFEST
from megatape.errors import UserError
from megatape.hf.folder_name import check_model_folder
from megatape.hf.importing.record import IMPORT, open_import
from megatape.hf.weights.checkpoint_weights import CheckpointWeights
from megatape.hf.weights.model_weights import ModelWeights
from megatape.registry import FAMILIES
from megatape.run_folder import RunFolder
from megatape.utils.json_files import read_json


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds a model.

    Attributes:
        kind: "checkpoint"; "import", which refers to a folder of transformers; "export", which has the code of its model; or
            "transformers", a folder of any other model of transformers. Exported rotary models are of this kind, too.
        path: The folder.
        files: Folder with the model's files. For an import, the folder that it refers to.
        base: Present folder of a checkpoint's base if it was moved, else None.
    """

    kind: Literal["checkpoint", "import", "export", "transformers"]
    path: Path
    files: Path
    base: Path | None = None

    def weights(self) -> ModelWeights:
        """Open the weights. Only headers and records are read.

        Raises:
            FileNotFoundError, UserError: Something is missing, corrupted or not supported.
        """
        if self.kind == "checkpoint":
            return CheckpointWeights(self.path, self.base)
        if self.kind == "import":
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
        return ModelFolder("checkpoint", path, path, base)
    if base is not None:
        raise UserError(f"{path} is no checkpoint that holds only what was trained: leave out `base`")
    if (path / IMPORT).is_file():
        return ModelFolder("import", path, open_import(path).directory)
    check_model_folder(path)
    if _has_code(path):
        return ModelFolder("export", path, path)
    return ModelFolder("transformers", path, path)


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
