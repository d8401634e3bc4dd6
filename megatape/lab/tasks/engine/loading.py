"""Options of loading the models that are evaluated."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LoadingOptions:
    """Options of loading, the same for all models of an evaluation.

    Attributes:
        trust_remote_code: Whether transformers runs the Python files in the folders.
        base: Folder that checkpoints of trained weights only started from.
        adapter: Exported adapter to merge into each model.
        training_code: Whether the code of training runs the models.
    """

    trust_remote_code: bool = False
    base: Path | None = None
    adapter: Path | None = None
    training_code: bool = False

    def name_of(self, folder: Path) -> str:
        """Return the name of the model in a folder, for messages and records."""
        return model_name(folder, self.adapter)


DEFAULT_LOADING = LoadingOptions()


def model_name(folder: Path, adapter: Path | None) -> str:
    """Return the name of a model in messages and records."""
    if adapter is None:
        return str(folder)
    return f"{folder} with {adapter}"
