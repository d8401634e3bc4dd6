"""Downloads a model from the Hugging Face hub before importing it."""

from pathlib import Path

from megatape.data.tokenizers.tokenizer import FILES
from megatape.errors import UserError
from megatape.hf.folder_name import HUB_ID
from megatape.hf.weights.tensor_headers import INDEX
from megatape.utils.files.atomic import check_absent, rename

# Files that an import needs. README.md states the license. Other formats of the same weights are not downloaded.
PATTERNS = ["config.json", "model*.safetensors", INDEX, *FILES, "README.md"]


def download_model(model: str, folder: Path) -> None:
    """Download the files of a model that an import needs.

    Files are downloaded to a partial folder next to `folder`, which is renamed when it is complete. If the download was
    interrupted, the next one resumes.

    Args:
        model: Id of the model, such as meta-llama/Llama-3.2-1B.
        folder: Folder to write. It must not exist.

    Raises:
        ExistingPath: `folder` exists.
        UserError: The model does not exist, the user has no access to it, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    if not HUB_ID.fullmatch(model):
        raise UserError(f"{model!r} is not the id of a model on the hub: give one such as meta-llama/Llama-3.2-1B")
    check_absent(folder)
    partial = folder.absolute().with_name(f".{model.replace('/', '--')}.partial")
    try:
        # Look up the commit: for a revision given by name, snapshot_download returns a partial folder as complete if it cannot
        # reach the hub.
        revision = HfApi().model_info(model).sha
        snapshot_download(model, revision=revision, local_dir=partial, allow_patterns=PATTERNS, ignore_patterns=["*/*"])
    except Exception as error:  # The client raises errors of its own, of its HTTP package, and of the disk.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{model} was not downloaded from {constants.ENDPOINT} ({reason}): give the same command again, which resumes; for "
            f"a gated or private model, accept its terms on its page and run `hf auth login`; or run `hf download {model} "
            "--local-dir DIR` where there is a network, and import DIR"
        ) from error
    rename(partial, folder)
