"""A small prepared data directory and a configuration that trains on it in a second."""

import random
from pathlib import Path
from typing import Any

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source

VOCAB_SIZE = 300


def prepare_words(folder: Path) -> Path:
    """150 documents of a few made-up words, about 20,000 tokens, prepared by the function of the public command."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(2, 6))) for _ in range(60)]
    texts = folder / "texts"
    texts.mkdir()
    for number in range(150):
        (texts / f"{number:03}.txt").write_text(" ".join(generator.choices(words, k=generator.randint(5, 100))))
    prepare(PreparationOptions(Source("text", (str(texts),)), 0.1, None, VOCAB_SIZE), folder / "data")
    return folder / "data"


def small_config(data_directory: Path, run_directory: Path) -> dict[str, Any]:
    """A run of four steps of a model with two layers."""
    return {
        "run": {"directory": str(run_directory)},
        "model": {
            "num_layers": 2,
            "hidden_size": 32,
            "num_heads": 8,
            "mlp_size": 40,
            "vocab_size": VOCAB_SIZE,
            "position_size": 6,
            "max_positions": 32,
        },
        "data": {"path": str(data_directory), "sequence_length": 32},
        "training": {"steps": 4, "global_batch_size": 8, "micro_batch_size": 4},
        "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.1},
        "evaluation": {"samples": 8},
        "logging": {"interval": 1},
    }
