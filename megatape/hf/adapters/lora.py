"""LoRA adapters in exports: weights with their adapters merged.

Adapters as files of peft are written by adapter_export.py, and merged into their base by adapter_merge.py.
"""

from torch import Tensor

from megatape.config import Config
from megatape.hf.weights.checkpoint_weights import Checkpoint


def without_adapters(config: Config) -> Config:
    """Return the configuration of the same model without LoRA."""
    model = config.model.model_copy(update={"lora": None})
    return config.model_copy(update={"model": model})


def merged_weight(checkpoint: Checkpoint, name: str) -> Tensor:
    """Read a weight of a checkpoint in float32, with the adapter of its layer merged if it has one."""
    weight = checkpoint.tensor(name)
    lora = checkpoint.config.model.lora
    layer, _, kind = name.rpartition(".")
    if lora is None or kind != "weight" or f"{layer}.adapter.a" not in checkpoint.names():
        return weight
    a = checkpoint.tensor(f"{layer}.adapter.a")
    b = checkpoint.tensor(f"{layer}.adapter.b")
    return merged(weight, a, b, lora.alpha, lora.rank)


def merged(weight: Tensor, a: Tensor, b: Tensor, alpha: float, rank: int) -> Tensor:
    """Merge an adapter into the weight of its layer: W + (alpha / rank) B A."""
    return weight + alpha / rank * (b @ a)
