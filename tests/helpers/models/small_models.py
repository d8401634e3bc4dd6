"""A small model in which every weight matters."""

from dataclasses import fields
from typing import Any

import torch

from megatape.config import ModelConfig
from megatape.model.build import build_model
from megatape.model.layout import Layout
from megatape.model.options import Kernels, TrainingOptions
from megatape.model.transformer import Transformer

SHAPE: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 32,
    "num_heads": 4,
    "mlp_size": 48,
    "vocab_size": 50,
    "position_size": 6,
    "max_positions": 64,
}


def model_with(config: ModelConfig, **options: Any) -> Transformer:
    """Return `build_model` of a configuration and of fields of Layout, Kernels and TrainingOptions, in one table of cases."""
    records: list[Any] = []
    for record in (Layout, Kernels, TrainingOptions):
        names = {field.name for field in fields(record)}
        records.append(record(**{name: options.pop(name) for name in names & options.keys()}))
    assert not options, f"no options of a model: {list(options)}"
    return build_model(config, *records)


def random_model(seed: int = 0, std: float = 0.15, options: dict[str, Any] | None = None, **changes: Any) -> Transformer:
    """Return a float32 model with all weights drawn at random, including position updates and norms.

    Args:
        seed: Seed for drawing the weights.
        std: Standard deviation of all weights.
        options: Options for `model_with`.
        changes: Changes to SHAPE.
    """
    model = model_with(ModelConfig(**SHAPE | changes), **options or {})
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if name.endswith("norm.weight") else 0.0, std, generator=generator)
    return model


def tokens_and_positions(batch: int = 2, length: int = 40, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random token ids and positions offset .. offset + length - 1, both [batch, length]."""
    tokens = torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1))
    return tokens, torch.arange(offset, offset + length).expand(batch, -1)
