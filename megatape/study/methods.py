"""The methods of the paper's context extension (arXiv 2501.00712, section 4.3 and Table 5): what each changes in the
configuration of a run that starts from a pretrained rope model."""

from collections.abc import Callable
from typing import Any

BASE = "base"  # the model as it is, beside the methods
Settings = dict[str, Any]  # section.key -> value, as --set takes them

_ALWAYS_TRAINED = ["embeddings", "norms"]
_LORA = {"rank": 8, "alpha": 16.0, "targets": ["query", "key", "value", "output"]}


def method_settings(name: str, original: int, length: int) -> Settings:
    """What a method of METHODS sets to take a model made for `original` tokens to `length` tokens."""
    return extension(original, length) | METHODS[name](length)


def extension(original: int, length: int) -> Settings:
    """What all methods have in common: longer samples, whose positions are divided to stay within the original length.

    Raises ValueError if `length` is not longer."""
    if length <= original:
        raise ValueError(f"length {length} is no longer than the {original} tokens that the base is made for: give more")
    return {
        "data.sequence_length": length,
        "model.encoding": "rope",
        "model.max_positions": length,
        "model.scaling": {"kind": "linear", "factor": length / original},
    }


def lora(length: int) -> Settings:
    """Adapters of the attention projections, the embedding and all norms; the rest is frozen."""
    return {"model.lora": _LORA, "training.trainable": ["adapters", *_ALWAYS_TRAINED]}


def theta(length: int) -> Settings:
    """LoRA with a higher base of the frequencies, beside the linear scaling that all methods have."""
    return lora(length) | {"model.rotary_base": 1e6}


def tape(length: int) -> Settings:
    """TAPE's position updates, which start at zero, the embedding and all norms; the rest is frozen."""
    return _TAPE | {"training.trainable": ["position", *_ALWAYS_TRAINED]}


def tape_lora(length: int) -> Settings:
    """Both: what the paper did not try."""
    return lora(length) | _TAPE | {"training.trainable": ["position", "adapters", *_ALWAYS_TRAINED]}


def full(length: int) -> Settings:
    """Every weight."""
    return {"training.trainable": ["all"]}


# No architecture of transformers itself has TAPE, whatever the base's is.
_TAPE: Settings = {"model.encoding": "tape", "export.family": None}

METHODS: dict[str, Callable[[int], Settings]] = {
    "lora": lora,
    "theta": theta,
    "tape": tape,
    "tape_lora": tape_lora,
    "full": full,
}
