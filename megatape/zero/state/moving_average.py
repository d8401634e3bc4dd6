"""Moving average of the weights (optimizer.ema_decay)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from megatape.zero.stages.stage import ZeroStage
from megatape.zero.state.kinds import EMA

# Elements swapped at a time between weights and averages.
CHUNK = 2**24


class MovingAverage:
    """Exponential moving average of the trained weights, stored like optimizer state.

    Args:
        decay: Share of the old average in the new one.
        stage: ZeRO stage, which holds the master weights.
        optimizer: Optimizer with a state tensor EMA for each flat tensor.
        parameters: Trained parameters.
    """

    def __init__(self, decay: float, stage: ZeroStage, optimizer: torch.optim.Optimizer, parameters: list[Any]) -> None:
        self._add_weights = get_ema_multi_avg_fn(decay)
        self._stage = stage
        self._optimizer = optimizer
        self._parameters = parameters

    def update(self) -> None:
        """Add the updated weights to their average."""
        pairs = self._pairs()
        if pairs:
            weights, averages = zip(*pairs, strict=True)
            self._add_weights(averages, weights, None)

    @contextmanager
    def replacing_weights(self) -> Iterator[None]:
        """Let the model compute with averaged weights inside the block, where no step may be made. Collective."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        """Swap the weights and their averages, and update the compute weights. Collective."""
        for weights, averages in self._pairs():
            for weight, average in zip(weights.split(CHUNK), averages.split(CHUNK), strict=True):
                old_weight = weight.clone()
                weight.copy_(average)
                average.copy_(old_weight)
        self._stage.copy_masters_to_weights(self._parameters)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return this rank's flat master weights, each with its average."""
        pairs = []
        for flat in self._stage.flats():
            average = self._optimizer.state[flat][EMA]
            pairs.append((flat.data.view(-1), average.view(-1)))
        return pairs
