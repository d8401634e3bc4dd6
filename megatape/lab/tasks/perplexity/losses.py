"""Losses of a model in windows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megatape.lab.tasks.engine.model import EvaluationModel
from megatape.lab.tasks.perplexity.windows import Window

# Maximum number of position ranges with recorded losses.
NUM_POSITIONS = 64


@dataclass(frozen=True)
class Prediction:
    """Losses in a window.

    Attributes:
        length: Context length in tokens.
        begin: The window's first token as an index in the text.
        size: Number of predicted tokens.
        scored: Number of scored tokens, the last ones.
        losses: Summed losses (nats) by position range, up to NUM_POSITIONS ranges.
        text_bytes: See Window.
    """

    length: int
    begin: int
    size: int
    scored: int
    losses: list[float]
    text_bytes: int | None


def window_losses(model: EvaluationModel, batch: list[Window]) -> Iterator[np.ndarray]:
    """Yield each window's losses at scored tokens (nats), float64 [num_scored]."""
    import torch
    from torch.nn.functional import cross_entropy

    samples = torch.from_numpy(np.stack([window.tokens for window in batch]))
    logits = model.logits(samples[:, :-1])
    targets = samples[:, 1:].flatten().to(logits.device)
    losses = cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    rows = losses.view(len(batch), -1).cpu().double().numpy()
    for window, row in zip(batch, rows, strict=True):
        yield row[row.size - window.num_scored :]
