"""Merges LoRA adapters into weights.

export.py writes adapters to files in peft's format, merge.py merges such files into their base.
"""

from torch import Tensor

from megatape.config import LoraConfig
from megatape.hf.weights.checkpoint import Checkpoint


def merged_weight(checkpoint: Checkpoint, lora: LoraConfig, name: str) -> Tensor:
    """Read a checkpoint weight in float32, and merge its layer's adapter if there is one.

    Args:
        checkpoint: Checkpoint of a run with LoRA.
        lora: Adapter settings.
        name: Parameter name.
    """
    weight = checkpoint.tensor(name)
    layer, _, kind = name.rpartition(".")
    if kind != "weight" or f"{layer}.adapter.a" not in checkpoint.names():
        return weight
    a = checkpoint.tensor(f"{layer}.adapter.a")
    b = checkpoint.tensor(f"{layer}.adapter.b")
    return merged(weight, a, b, lora.alpha, lora.rank)


def merged(weight: Tensor, a: Tensor, b: Tensor, alpha: float, rank: int) -> Tensor:
    """Return the weight of a layer with its adapter merged: W + (alpha / rank) B A."""
    return weight + alpha / rank * (b @ a)
