"""LoRA adapters in exports: weights with their adapters merged.

export.py writes adapters as files of peft, and merge.py merges such files into their base.
"""

from torch import Tensor

from megatape.config import LoraConfig, ModelConfig
from megatape.hf.exporting.checkpoint import Checkpoint


def without_adapters(model: ModelConfig) -> ModelConfig:
    """Return the section of the same model without LoRA."""
    return model.model_copy(update={"lora": None})


def merged_weight(checkpoint: Checkpoint, lora: LoraConfig, name: str) -> Tensor:
    """Read a weight of a checkpoint in float32, with the adapter of its layer merged if it has one.

    Args:
        checkpoint: Checkpoint of a run with LoRA.
        lora: Settings of the adapters.
        name: Name of the weight.
    """
    weight = checkpoint.tensor(name)
    layer, _, kind = name.rpartition(".")
    if kind != "weight" or f"{layer}.adapter.a" not in checkpoint.names():
        return weight
    a = checkpoint.tensor(f"{layer}.adapter.a")
    b = checkpoint.tensor(f"{layer}.adapter.b")
    return merged(weight, a, b, lora.alpha, lora.rank)


def merged(weight: Tensor, a: Tensor, b: Tensor, alpha: float, rank: int) -> Tensor:
    """Merge an adapter into the weight of its layer: W + (alpha / rank) B A."""
    return weight + alpha / rank * (b @ a)
