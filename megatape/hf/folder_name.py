"""Checks the names of model folders before importing torch and transformers, which takes seconds."""

import re
from pathlib import Path

from megatape.errors import MissingPath

# Id of a model or dataset on the Hugging Face hub.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

# Descriptions of the expected folder, for error messages.
MODEL = "a checkpoint, an export, an import or a model of transformers"
CHECKPOINT = "a checkpoint such as runs/NAME/checkpoints/step-00000100"
PRETRAINED = "one as transformers' save_pretrained writes it"
ADAPTER = "an adapter that `megatape export` wrote"


def check_model_folder(path: Path, expected: str = MODEL) -> None:
    """Check that a folder exists. Its content is checked when it is read.

    Args:
        path: Model folder.
        expected: Description of the expected content, for the error message.

    Raises:
        MissingPath: The folder is missing.
    """
    if not path.is_dir():
        raise MissingPath(f"{path}: no such folder: give {expected}{download_hint(path)}")


def download_hint(path: Path) -> str:
    """Return the end of a message about a missing folder: how to download it, if its name may be an id on the hub."""
    if not HUB_ID.fullmatch(str(path)) or path.parent.exists():
        return ""
    return f"; a model of the Hugging Face hub is downloaded first: hf download {path} --local-dir {path.name}"
