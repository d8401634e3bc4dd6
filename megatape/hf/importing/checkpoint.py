"""Presents an import as a checkpoint of step 0, so that it can be exported without training."""

from pathlib import Path

from torch import Tensor

from megatape.config import Config, load_config
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.hf.importing.record import open_import
from megatape.model.build import meta_model
from megatape.model.init import initial_weight

# Settings that a user adds to an import's config.json before training. No export depends on them.
PLACEHOLDERS = ("data.path=DATA", "data.mixture={}", "training.steps=1000")


class ImportCheckpoint:
    """Weights that a run starts with after an import, as a checkpoint (megatape.hf.weights.checkpoint.Checkpoint).

    New adapters are dropped, because they do not change the model at step 0.

    Args:
        directory: Import folder.
        config: Configuration of the run, by default the import's.

    Raises:
        MissingPath, UserError: The import is incomplete or corrupted, or its configuration describes another model.
    """

    step = 0
    tokens = 0

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        self.directory = directory
        self._weights = open_import(directory)
        if config is None:
            config = load_config(directory / "config.json", PLACEHOLDERS)
        model = config.model.without_adapters()
        self.config = config.model_copy(update={"model": model})
        self._weights.check_fits(self.config.model)
        self._parameters = dict(meta_model(self.config.model).named_parameters())

    def verify(self) -> None:
        """Verify the hashes of all source files. Raises UserError if a file has changed, MissingPath if it is missing."""
        self._weights.verify()

    def names(self) -> list[str]:
        """Return all parameter names."""
        return list(self._parameters)

    def tensor(self, name: str) -> Tensor:
        """Read a source weight in float32, or draw its initial value if the source lacks it."""
        if name in self._weights.tensors:
            return self._weights.tensor(name)
        return initial_weight(name, self._parameters[name], self.config.model.init_std, self.config.training.seed)

    def tokenizer(self) -> Tokenizer:
        """Open the source tokenizer. Raises UserError if there is none."""
        return self._weights.tokenizer()
