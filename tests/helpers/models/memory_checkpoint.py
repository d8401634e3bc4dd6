"""In-memory checkpoints, offering the reader's methods needed for exporting."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from megatape.config import Config, parse_config
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.model.transformer import Transformer
from tests.helpers.models.small_models import SHAPE, random_model

VOCAB_SIZE = 330


class MemoryCheckpoint:
    """A model as export reads it from a checkpoint."""

    step = 7
    tokens = 1234

    def __init__(self, model: Transformer, config: Config, tokenizer: Path) -> None:
        self.weights = dict(model.state_dict())
        self.config = config
        self.directory = tokenizer.parent
        self._tokenizer = load_tokenizer(tokenizer)

    def names(self) -> list[str]:
        return list(self.weights)

    def tensor(self, name: str) -> Tensor:
        return self.weights[name]

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer


def memory_checkpoint(
    tokenizer: Path, precision: str = "float32", trainable: Sequence[str] = ("all",), **changes: Any
) -> tuple[MemoryCheckpoint, Transformer]:
    """Return a small random model after making `changes` to its shape, and its checkpoint."""
    changes = {"vocab_size": VOCAB_SIZE} | changes
    raw = {
        "run": {"directory": "run"},
        "model": SHAPE | changes,
        "data": {"path": "data", "sequence_length": 64},
        "training": {
            "steps": 1,
            "global_batch_size": 1,
            "micro_batch_size": 1,
            "precision": precision,
            "trainable": list(trainable),
        },
        "optimizer": {"learning_rate": 1e-3},
    }
    model = random_model(**changes)
    return MemoryCheckpoint(model, parse_config(raw, "test"), tokenizer), model
