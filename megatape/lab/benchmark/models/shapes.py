"""Shapes of the measured models (as in configs/, with one GPU's micro-batch), and random weights like trained ones."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from megatape.config import Config, ModelConfig, parse_config
from megatape.encodings import encoding_of
from megatape.lab.encodings import BASELINE
from megatape.lab.paper import COST_LAYERS, COST_LENGTH, SHAPE
from megatape.nn.parameters import spec_of

# Standard deviation for position gains, which are zero before training and reach this size in 50 steps.
GAIN_STD = 0.06
# Standard deviation for W_up, which is zero before training. The initial W_down has the same.
UP_STD = 0.02


@dataclass(frozen=True)
class ModelShape:
    """A model, and a micro-batch of B sequences with N tokens each."""

    model: ModelConfig
    batch: int
    length: int

    def with_layers(self, count: int) -> "ModelShape":
        """Return this shape with another depth."""
        return replace(self, model=self.model.model_copy(update={"num_layers": count}))

    def config(self, encoding: str, precision: str, **training: Any) -> Config:
        """Return the configuration of a run on one GPU.

        Args:
            encoding: Encoding name.
            precision: Value of training.precision.
            training: More values in the section training.
        """
        batch = {"global_batch_size": self.batch, "micro_batch_size": self.batch}
        return parse_config(
            {
                "run": {"directory": "unused"},
                "model": self.model.model_dump() | {"encoding": encoding},
                "data": {"path": "unused", "sequence_length": self.length},
                "training": {"steps": 1, "precision": precision} | batch | training,
                "optimizer": {"learning_rate": 1e-4},
                "zero": {"stage": 2},
            },
            "benchmark",
        )


def _shape(
    *,
    batch: int,
    length: int,
    layers: int,
    width: int,
    heads: int,
    mlp: int,
    vocab: int = 32000,
    **others: int,
) -> ModelShape:
    model = {
        "num_layers": layers,
        "hidden_size": width,
        "num_heads": heads,
        "mlp_size": mlp,
        "vocab_size": vocab,
        "max_positions": length,
        **others,
    }
    return ModelShape(ModelConfig.model_validate(model), batch, length)


SHAPES = {
    "155m": _shape(batch=16, length=1024, layers=12, width=768, heads=12, mlp=3072, position_size=48),
    "1b": _shape(batch=4, length=2048, layers=24, width=2048, heads=16, mlp=5632),
    "7b": _shape(batch=2, length=4096, layers=32, width=4096, heads=32, mlp=11008),
    "8b": _shape(batch=1, length=8192, layers=32, width=4096, heads=32, mlp=14336, vocab=128256, num_kv_heads=8),
}
# Small shapes with similar proportions. FP8 products require multiples of 16.
TINY_SHAPES = {
    "155m": _shape(batch=2, length=32, layers=2, width=32, heads=4, mlp=48, vocab=512),
    "1b": _shape(batch=1, length=48, layers=2, width=32, heads=2, mlp=48, vocab=512),
    "7b": _shape(batch=1, length=48, layers=5, width=32, heads=2, mlp=48, vocab=512),
    "8b": _shape(batch=1, length=48, layers=2, width=32, heads=4, mlp=48, vocab=512, num_kv_heads=2),
}


def shapes(tiny: bool) -> dict[str, ModelShape]:
    """Return the shapes by name."""
    if tiny:
        return TINY_SHAPES
    return SHAPES


def paper_config() -> ModelConfig:
    """Return the paper's 155M model with RoPE."""
    sizes = {"num_layers": COST_LAYERS, "max_positions": COST_LENGTH, "encoding": BASELINE}
    return ModelConfig.model_validate(SHAPE | sizes)


def configured_model(model: ModelConfig | None, layers: int | None, length: int = 0) -> ModelConfig:
    """Return a model with another depth and enough positions.

    Args:
        model: Model configuration. None for the paper's model.
        layers: Number of layers. None to keep the model's.
        length: Smallest max_positions.
    """
    if model is None:
        model = paper_config()
    sizes = {"num_layers": layers or model.num_layers, "max_positions": max(model.max_positions, length)}
    return ModelConfig.model_validate(model.model_dump() | sizes)


def compute_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 for a GPU, float32 for a CPU."""
    if device.type == "cuda":
        return torch.bfloat16
    return torch.float32


def compute_precision(device: torch.device) -> str:
    """Return the value of training.precision for the compute dtype."""
    return str(compute_dtype(device)).removeprefix("torch.")


def position_state(config: ModelConfig, positions: Tensor) -> Tensor:
    """Return a stateful encoding's state at some positions."""
    state = encoding_of(config).state(positions)
    assert state is not None
    return state


@torch.no_grad()
def draw_weight(name: str, parameter: nn.Parameter, std: float, generator: torch.Generator) -> None:
    """Fill a parameter with random initial values. Position weights are not zero, so that updates have an effect.

    Args:
        name: Parameter name.
        parameter: Parameter to fill.
        std: Standard deviation, unless the parameter specifies its initial values.
        generator: Random generator on the parameter's device.
    """
    init = spec_of(parameter).init
    if name.endswith("position.gain"):
        init = None
        std = GAIN_STD
    elif name.endswith("position.up"):
        init = None
        std = UP_STD
    if isinstance(init, float):
        parameter.fill_(init)
    elif init is None:
        parameter.normal_(0.0, std, generator=generator)
    else:
        parameter.uniform_(init.middle - init.bound, init.middle + init.bound, generator=generator)
