"""The perplexity task."""

from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from megatape.errors import UserError, flag
from megatape.lab.paper import EXTENSION_NAMES, EXTENSION_PERPLEXITY
from megatape.lab.tasks.engine.lengths import LengthList, usual_lengths
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import PublishedRows
from megatape.lab.tasks.engine.task import Task
from megatape.lab.tasks.perplexity.losses import NUM_POSITIONS, Prediction, window_losses
from megatape.lab.tasks.perplexity.results import PerplexityScores, measure_name, score_length
from megatape.lab.tasks.perplexity.text import read_tokens
from megatape.lab.tasks.perplexity.windows import AUTHORS_STRIDE, Window, batched, count_scored_bytes, cut_windows
from megatape.utils.values.options import Count, option


@dataclass(frozen=True)
class Perplexity(Task[Window, Prediction, PerplexityScores]):
    """The perplexity task of `megatape evaluate`.

    Attributes:
        data: data directory; perplexity takes its validation split, or a text file, or a .bin file
            of token ids (uint16, in nanoGPT's format)
        lengths: context lengths in tokens (default: powers of two from 256 to the model's maximum)
        mode: windows side by side; windows that move by --stride and score that many tokens; or as
            in the paper's code, windows every 256 tokens of which all predictions count
        stride: tokens that sliding windows move by (default: 256)
        max_tokens: use the first N tokens of the text
    """

    data: Annotated[Path, option(metavar="PATH")]
    lengths: Annotated[LengthList | None, option(metavar="L,L,...")] = None
    mode: Literal["disjoint", "sliding", "authors"] = "disjoint"
    stride: Annotated[int | None, option(metavar="S")] = None
    max_tokens: Annotated[Count, option(metavar="N")] = 2**17

    prediction = Prediction

    def batches(self, model: ModelOutline) -> list[list[Window]]:
        """Make batches of equally long windows. All lengths score the same tokens, except in mode "authors".

        Raises:
            FileNotFoundError: The text is missing.
            UserError: The text is too short or has another tokenizer's ids, or lengths or stride do not suit the mode.
        """
        if self.stride is not None and self.mode != "sliding":
            raise UserError(f"{flag('stride')} has no effect with {flag('mode')} {self.mode}: leave it out, or choose sliding")
        lengths = self.lengths or usual_lengths(model.max_positions)
        tokens = read_tokens(model, self.data, self.max_tokens)
        if tokens.size <= max(lengths):
            raise UserError(
                f"{flag('lengths')} {max(lengths)}: {self.data} has {tokens.size} tokens ({flag('max_tokens')} "
                f"{self.max_tokens}), and one more than the longest length is needed: give shorter lengths, or more text"
            )
        stride = self.stride
        if stride is None:
            stride = AUTHORS_STRIDE
        batches = []
        for length in lengths:
            windows = cut_windows(tokens, self.mode, length, max(lengths), stride)
            text_bytes = count_scored_bytes(model, tokens, windows)
            batches += batched([replace(window, text_bytes=text_bytes) for window in windows])
        return batches

    def run(self, model: EvaluationModel, batch: list[Window]) -> list[Prediction]:
        predictions = []
        for window, losses in zip(batch, window_losses(model, batch), strict=True):
            ranges = np.array_split(losses, min(NUM_POSITIONS, losses.size))
            sums = [float(part.sum()) for part in ranges]
            size = window.tokens.size - 1
            predictions.append(Prediction(window.length, window.begin, size, window.num_scored, sums, window.text_bytes))
        return predictions

    def result(self, predictions: list[Prediction]) -> PerplexityScores:
        by_length = groupby(predictions, lambda each: each.length)
        return PerplexityScores(self.mode, [score_length(length, list(windows)) for length, windows in by_length])

    def paper(self) -> PublishedRows:
        """Return the paper's Table 4, measured on its own two texts."""
        if self.mode != "authors":
            return {}
        rows = {}
        for text, table in EXTENSION_PERPLEXITY.items():
            names = [measure_name(length) for length in table.lengths]
            for method, values in table.rows.items():
                rows[f"{EXTENSION_NAMES[method]}, Llama 2 7B on {text}"] = dict(zip(names, values, strict=True))
        return rows
