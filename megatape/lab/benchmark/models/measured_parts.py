"""Timed parts of the measured models."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from megatape.lab.benchmark.models.measured_model import MeasuredLlama, MeasuredModel


def train(model: nn.Module, forward: Callable[[], Tensor]) -> None:
    """Run a forward and a backward pass, without the optimizer."""
    forward().backward()
    model.zero_grad(set_to_none=True)


class MeasuredPart(NamedTuple):
    """Timed part of our models, and of transformers' Llama if it has that part."""

    title: str
    run: Callable[[MeasuredModel], None]
    run_llama: Callable[[MeasuredLlama], None] | None = None


def training_step(measured: MeasuredModel | MeasuredLlama) -> None:
    """Train the model."""
    train(measured.model, measured.loss)


def training_step_of_blocks(measured: MeasuredModel | MeasuredLlama) -> None:
    """Train the blocks alone."""
    train(measured.model, measured.blocks)


ATTENTION_LAYER = MeasuredPart("attention layer", MeasuredModel.attention_layer)
PARTS = (
    MeasuredPart("training step", training_step, training_step),
    MeasuredPart("training step, blocks alone", training_step_of_blocks, training_step_of_blocks),
    MeasuredPart("inference", MeasuredModel.inference),
    ATTENTION_LAYER,
)
