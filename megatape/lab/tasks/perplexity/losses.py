"""Losses of a model in windows of a text."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megatape.lab.tasks.engine.model import EvaluationModel
from megatape.lab.tasks.perplexity.windows import Window

# Maximum number of ranges of positions whose losses are stored.
NUM_POSITIONS = 64


@dataclass(frozen=True)
class Prediction:
    """Losses of a window.

    Attributes:
        length: Context length of the window.
        begin: Index of the window's first token in the text.
        size: Number of predicted tokens.
        scored: Number of predictions that count.
        losses: Sums of the losses that count (nats), in up to NUM_POSITIONS ranges of positions.
        text_bytes: Bytes of the text scored by all windows of this length, None if they score a token more than once.
    """

    length: int
    begin: int
    size: int
    scored: int
    losses: list[float]
    text_bytes: int | None


def window_losses(model: EvaluationModel, batch: list[Window]) -> Iterator[np.ndarray]:
    """Yield the losses that count of each window in a batch, float64 [num_scored]."""
    import torch
    from torch.nn.functional import cross_entropy

    samples = torch.from_numpy(np.stack([window.tokens for window in batch]))
    logits = model.logits(samples[:, :-1])
    targets = samples[:, 1:].flatten().to(logits.device)
    losses = cross_entropy(logits.flatten(0, 1), targets, reduction="none")
    rows = losses.view(len(batch), -1).cpu().double().numpy()
    for window, row in zip(batch, rows, strict=True):
        yield row[row.size - window.num_scored :]
