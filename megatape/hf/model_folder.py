"""The folders that hold a model: what kind each is, its weights, whether another model can start with them, and downloads.

Imports no transformers, which takes seconds, unless the weights are in a folder of transformers. Nothing in this folder uses
the network but the download of a model of the Hugging Face hub.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megatape.accounting.counts import meta_model
from megatape.checkpoint.manifest import MANIFEST
from megatape.config import ModelConfig
from megatape.data.tokenizers.tokenizer import FILES
from megatape.errors import UserError
from megatape.hf.checkpoint_source import CheckpointWeights, parameter_shapes
from megatape.hf.folder_name import HUB_ID, check_model_folder
from megatape.hf.folder_weights import IMPORT, INDEX, FolderWeights, find_weights, open_import
from megatape.model.lora import in_adapter
from megatape.model.trainable import position_parameters
from megatape.registry import FAMILIES
from megatape.run_folder import RunFolder
from megatape.utils.files import check_absent, read_json, rename

ModelWeights = CheckpointWeights | FolderWeights
_NAMED = 3  # parameters that an error names


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds a model.

    Attributes:
        kind: a "checkpoint"; an "import", which refers to a folder of transformers; an "export" with
            the code of its model; or a plain folder of "transformers", as rotary models are exported.
        path: the folder.
        files: the folder with the model's files, which for an import is the one that it refers to.
        base: the folder of the weights that a checkpoint leaves out, if they were moved.
    """

    kind: Literal["checkpoint", "import", "export", "transformers"]
    path: Path
    files: Path
    base: Path | None = None

    def weights(self) -> ModelWeights:
        """Its weights, of which only headers and records are read.

        Raises:
            FileNotFoundError, UserError: for what is missing, corrupted or not supported.
        """
        if self.kind == "checkpoint":
            return CheckpointWeights(self.path, self.base)
        if self.kind == "import":
            return open_import(self.path)
        from megatape.hf.architecture import read_architecture  # with transformers

        found = read_architecture(self.files)
        return find_weights(self.files, found.model, found.family)


def open_model_folder(path: Path, base: Path | None = None) -> ModelFolder:
    """Say what kind of folder a model is in; its content is checked when it is read.

    Args:
        path: the folder.
        base: of a checkpoint, as CheckpointReader takes it.

    Raises:
        FileNotFoundError: if there is no such folder, or that of an import has moved.
        UserError: if an import's record is corrupted, or `base` is given for another kind of folder.
    """
    if (path / MANIFEST).is_file() or RunFolder(path).list_checkpoints():
        return ModelFolder("checkpoint", path, path, base)
    if base is not None:
        raise UserError(f"{path} is no checkpoint that holds only what was trained: leave out `base`")
    if (path / IMPORT).is_file():
        return ModelFolder("import", path, open_import(path).directory)
    check_model_folder(path)
    return ModelFolder("export" if _has_code(path) else "transformers", path, path)


def _has_code(path: Path) -> bool:
    """Whether the model in a folder of transformers is one whose code is exported with it."""
    try:
        model_type = read_json(path / "config.json")["model_type"]
        return FAMILIES[model_type].encodings is None
    except (OSError, ValueError, LookupError, TypeError):  # reading the model says what is wrong
        return False


def check_fits(source: ModelWeights, model: ModelConfig) -> set[str]:
    """Check that `model` can start with these weights. Adapters may be missing.

    Returns:
        The names of the weights that it starts with: with another encoding none that belong to either encoding alone, even if
        both have one of this name.

    Raises:
        UserError: It cannot; the message names the parameters.
    """
    ours = parameter_shapes(model)
    theirs = source.shapes()
    if source.model.encoding != model.encoding:
        own = position_parameters(meta_model(model)) | position_parameters(meta_model(source.model))
        ours, theirs = ({name: shape for name, shape in shapes.items() if name not in own} for shapes in (ours, theirs))
    lacking = {name for name in ours.keys() - theirs.keys() if not in_adapter(name)}
    faults = {
        "it lacks": sorted(lacking),
        "this model lacks": sorted(theirs.keys() - ours.keys()),
        "shapes differ:": [
            f"{name} {theirs[name]}, here {shape}" for name, shape in ours.items() if theirs.get(name, shape) != shape
        ],
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise UserError(
                f"training.init_from {source.directory} holds another model: {fault} {', '.join(names[:_NAMED])}{more}: take "
                "over its model section, but for the encoding, the scaling, max_positions and new adapters"
            )
    return ours.keys() & theirs.keys()


# README.md has the license. Other formats of the same weights are not downloaded.
_PATTERNS = ["config.json", "model*.safetensors", INDEX, *FILES, "README.md"]


def download_model(model: str, folder: Path) -> None:
    """Download the files of a model that an import needs into the new folder `folder`.

    It appears when it is complete. An interrupted download resumes in a folder beside it.

    Args:
        model: Id such as meta-llama/Llama-3.2-1B.
        folder: Folder to write.

    Raises:
        ExistingPath: `folder` exists.
        UserError: There is no such model, the user has no access to it, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    if not HUB_ID.fullmatch(model):
        raise UserError(f"{model!r} is not the id of a model of the hub: give one such as meta-llama/Llama-3.2-1B")
    check_absent(folder)
    partial = folder.absolute().with_name(f".{model.replace('/', '--')}.partial")
    try:
        # By name, snapshot_download would take a partial folder for the whole model where the hub cannot be reached.
        revision = HfApi().model_info(model).sha
        snapshot_download(model, revision=revision, local_dir=partial, allow_patterns=_PATTERNS, ignore_patterns=["*/*"])
    except Exception as error:  # the client's own, those of its HTTP package, and the disk's
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{model} was not downloaded from {constants.ENDPOINT} ({reason}): give the same command again, which resumes; for "
            f"a gated or private model, accept its terms on its page and run `hf auth login`; or run `hf download {model} "
            "--local-dir DIR` where there is a network, and import DIR"
        ) from error
    rename(partial, folder)
