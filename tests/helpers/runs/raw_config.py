"""A valid configuration, and changing it."""

import copy
from typing import Any

from megatape.config import Config, parse_config

RAW: dict[str, Any] = {
    "run": {"directory": "runs/x"},
    "model": {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "mlp_size": 128, "vocab_size": 100, "max_positions": 32},
    "data": {"path": "data", "sequence_length": 32},
    "training": {"steps": 10, "global_batch_size": 8, "micro_batch_size": 2},
    "optimizer": {"learning_rate": 1e-3},
}

MIXTURE = {"a": {"path": "x"}, "b": {"path": "y"}}


def mixed(**corpora: Any) -> dict[str, Any]:
    """Return the data section for a mixture."""
    return {"mixture": MIXTURE | corpora, "sequence_length": 32}


def parse(**changes: Any) -> Config:
    """Parse RAW with changes written as section__key=value."""
    raw = copy.deepcopy(RAW)
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            raw.setdefault(section, {})[key] = value
        else:
            raw[section] = value
    return parse_config(raw, "here.json")
