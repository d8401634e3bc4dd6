"""Which layers of a model have LoRA adapters."""

import hashlib

from torch import nn

from megatape.config import LoraConfig
from megatape.nn.linear import ColumnLinear, RowLinear
from megatape.nn.lora import ColumnAdapter, LoraColumnLinear, LoraRowLinear, RowAdapter

# Where model.lora.targets are in a block.
TARGETS = {name: f"attention.{name}" for name in ("query", "key", "value", "output")}
TARGETS |= {name: f"mlp.{name}" for name in ("gate", "up", "down")}


def in_adapter(name: str) -> bool:
    """Whether the parameter `name` belongs to an adapter."""
    return ".adapter." in name


def add_adapters(blocks: nn.ModuleList, lora: LoraConfig) -> None:
    """Swap the targeted layers of every block for the same layers with an adapter."""
    for index, block in enumerate(blocks):
        for path in (TARGETS[target] for target in lora.targets):
            layer = block.get_submodule(path)
            assert isinstance(layer, ColumnLinear | RowLinear)
            is_column = isinstance(layer, ColumnLinear)
            layer.__class__ = LoraColumnLinear if is_column else LoraRowLinear
            layer.adapter = (ColumnAdapter if is_column else RowAdapter)(
                layer.in_features,
                layer.out_features,
                layer.axis,
                rank=lora.rank,
                alpha=lora.alpha,
                dropout=lora.dropout,
                layer=int.from_bytes(hashlib.sha256(f"{index}.{path}".encode()).digest()[:7]),
            )
