"""Names of model folders, checked before torch and transformers are imported, which takes seconds."""

import re
from pathlib import Path

from megatape.errors import MissingPath

# Id of a model on the Hugging Face hub.
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

# Descriptions of the expected folder, for error messages.
MODEL = "a checkpoint, an export, an import or a model of transformers"
CHECKPOINT = "a checkpoint such as runs/NAME/checkpoints/step-00000100"
PRETRAINED = "one as transformers' save_pretrained writes it"
ADAPTER = "an adapter that `megatape export` wrote"


def check_model_folder(path: Path, wanted: str = MODEL) -> None:
    """Check that a folder exists. Its content is checked when it is read.

    Args:
        path: The folder.
        wanted: Description of the expected content, for the error.

    Raises:
        MissingPath: There is no such folder.
    """
    if not path.is_dir():
        raise MissingPath(f"{path}: no such folder: give {wanted}{how_to_get(path)}")


def how_to_get(path: Path) -> str:
    """Return the end of an error about a missing folder: the command that downloads it, if its name may be an id of the hub."""
    if not HUB_ID.fullmatch(str(path)) or path.parent.exists():
        return ""
    return f"; a model of the Hugging Face hub is downloaded first: hf download {path} --local-dir {path.name}"
