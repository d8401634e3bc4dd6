"""Imports as checkpoints of step 0, so that they are exported without a training step."""

from pathlib import Path

from torch import Tensor

from megatape.accounting.parameters import meta_model
from megatape.config import Config, load_config
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.hf.adapters.lora import without_adapters
from megatape.hf.importing.record import open_import
from megatape.model.init import initial_weight

# Settings that a user adds to an import's config.json before training, and that no export depends on.
PLACEHOLDERS = ("data.path=DATA", "data.mixture={}", "training.steps=1000")


class ImportCheckpoint:
    """Weights with which a run of an import's configuration starts (megatape.hf.exporting.checkpoint.Checkpoint).

    New adapters do not change the model at step 0, so they are left out.

    Args:
        directory: Folder of the import.
        config: Configuration of the run, by default the import's own.

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
        model = without_adapters(config.model)
        self.config = config.model_copy(update={"model": model})
        self._weights.check_fits(self.config.model)
        self._parameters = dict(meta_model(self.config.model).named_parameters())

    def verify(self) -> None:
        """Verify the hashes of all files of the source. Raises UserError or MissingPath if one has changed."""
        self._weights.verify()

    def names(self) -> list[str]:
        """Return the names of all parameters."""
        return list(self._parameters)

    def tensor(self, name: str) -> Tensor:
        """Read a weight of the source in float32, or draw the initial value of one that the source lacks."""
        if name in self._weights.tensors:
            return self._weights.tensor(name)
        return initial_weight(name, self._parameters[name], self.config.model.init_std, self.config.training.seed)

    def tokenizer(self) -> Tokenizer:
        """Open the tokenizer of the source. Raises UserError if it has none."""
        return self._weights.tokenizer()
