"""Options for loading models."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LoadingOptions:
    """Options for loading models, shared by all models in a command.

    Attributes:
        trust_remote_code: Whether transformers may run Python files from the model folders.
        base: Base model folder of checkpoints holding only trained weights.
        adapter: Exported adapter to merge into each model.
        training_code: Whether the training code runs the models, without an export.
    """

    trust_remote_code: bool = False
    base: Path | None = None
    adapter: Path | None = None
    training_code: bool = False

    def name_of(self, folder: Path) -> str:
        return model_name(folder, self.adapter)


DEFAULT_LOADING = LoadingOptions()


def model_name(folder: Path, adapter: Path | None) -> str:
    """Return the name of a model in messages and records."""
    if adapter is None:
        return str(folder)
    return f"{folder} with {adapter}"
