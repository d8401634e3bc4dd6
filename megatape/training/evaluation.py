"""What is measured on the validation split while training."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from megatape.zero.engine import Engine, Inputs


@dataclass(frozen=True)
class Validation:
    """Mean loss in nats, and the root mean square modulus of the position tensor behind each layer (1 before training).

    There are no norms for an encoding whose blocks change no such tensor."""

    loss: float
    position_norms: list[float]


@torch.no_grad()
def position_norms(engine: Engine, inputs: Inputs) -> list[float]:
    """Root mean square of |c + i s| over tokens, channels and planes, behind each layer, for one micro-batch of every rank."""
    if not engine.deepspeed.module.encoding.carries_state:
        return []
    states: list[tuple[Tensor, Tensor | None]] = []
    engine.deepspeed.eval()
    engine.deepspeed(**inputs, states=states)
    # A plane is two numbers of e: its mean squared modulus is twice the mean square of e.
    squares = [engine.sum_over_ranks(float(2 * e.square().mean())) for _, e in states if e is not None]
    return [math.sqrt(square / engine.topology.world_size) for square in squares]
