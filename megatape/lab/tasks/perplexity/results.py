"""Perplexity results: perplexity and losses by position, at each length."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from megatape.lab.perplexity import perplexity
from megatape.lab.tasks.engine.result import Measure
from megatape.lab.tasks.perplexity.losses import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LengthScore:
    """Results at one length.

    Attributes:
        length: Context length in tokens.
        tokens: Number of scored tokens.
        nats: Mean loss per token.
        error: Standard error over windows, None for a single window or if any token is scored twice.
        nats_per_byte: Mean loss per text byte, None if any token is scored twice.
        positions: Middle positions of up to NUM_POSITIONS ranges, counting the tokens before the scored one.
        by_position: Mean loss in each range.
        errors_by_position: Standard error in each range, None if `error` is.
    """

    length: int
    tokens: int
    nats: float
    error: float | None
    nats_per_byte: float | None
    positions: list[float]
    by_position: list[float]
    errors_by_position: list[float] | None

    @property
    def perplexity(self) -> float:
        """Perplexity of the mean loss."""
        return perplexity(self.nats)


@dataclass(frozen=True)
class PerplexityScores:
    """Results at all lengths.

    Attributes:
        mode: Mode of the task.
        scores: Results by ascending length.
    """

    mode: str
    scores: list[LengthScore]

    @property
    def summary(self) -> str:
        parts = (f"{score.length} tokens {score.perplexity:.4g}" for score in self.scores)
        return f"perplexity ({self.mode}): {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """Perplexity at each length, and nats per byte if every token is scored once."""
        measures = []
        for score in self.scores:
            error = None
            if score.error is not None:
                error = score.perplexity * score.error
            measures.append(Measure(measure_name(score.length), score.perplexity, error, score.tokens))
        for score in self.scores:
            if score.nats_per_byte is None:
                continue
            error = None
            if score.error is not None:
                error = score.nats_per_byte / score.nats * score.error
            measures.append(Measure(f"nats per byte at {score.length}", score.nats_per_byte, error, score.tokens))
        return measures

    def describe(self) -> dict[str, Any]:
        return {"lengths": [asdict(score) | {"perplexity": score.perplexity} for score in self.scores]}

    def draw(self, figure: "Figure") -> None:
        """Draw the perplexity over lengths, and for each length the loss over positions."""
        figure.set_size_inches(11, 4.5)
        over_lengths, over_positions = figure.subplots(1, 2)
        lengths = [score.length for score in self.scores]
        over_lengths.plot(lengths, [score.perplexity for score in self.scores], marker=".")
        over_lengths.set_xscale("log", base=2)
        over_lengths.set_xticks(lengths, map(str, lengths))
        over_lengths.set(xlabel="tokens", ylabel="perplexity")
        for score in self.scores:
            over_positions.errorbar(
                score.positions, score.by_position, score.errors_by_position, marker=".", label=f"{score.length} tokens"
            )
        over_positions.set_xscale("log", base=2)
        over_positions.set(xlabel="position in the window", ylabel="loss (nats)")
        over_positions.legend()


def score_length(length: int, windows: list[Prediction]) -> LengthScore:
    """Compute the results at one length from the losses in its windows."""
    num_scored = windows[0].scored
    text_bytes = windows[0].text_bytes
    # [windows, position ranges]
    sums = np.array([window.losses for window in windows])
    total = float(sums.sum())
    num_tokens = len(windows) * num_scored
    ranges = np.array_split(np.empty(num_scored), sums.shape[1])
    sizes = np.array([part.size for part in ranges])
    # The first predicted token has one token before it. Only the last tokens in a window are scored.
    positions = windows[0].size - num_scored + np.cumsum(sizes) - (sizes - 1) / 2

    nats_per_byte = None
    error = None
    errors = None
    if text_bytes is not None:
        nats_per_byte = total / text_bytes
        if len(windows) > 1:
            error = float(_standard_error(sums.sum(1) / num_scored))
            errors = _standard_error(sums / sizes).tolist()
    return LengthScore(
        length=length,
        tokens=num_tokens,
        nats=total / num_tokens,
        error=error,
        nats_per_byte=nats_per_byte,
        positions=positions.tolist(),
        by_position=(sums.mean(0) / sizes).tolist(),
        errors_by_position=errors,
    )


def measure_name(length: int) -> str:
    """Return the measure's name at a length."""
    return f"perplexity at {length}"


def _standard_error(means: np.ndarray) -> np.ndarray:
    """Return the standard error of the mean over windows, the first axis."""
    return np.asarray(means.std(0, ddof=1) / math.sqrt(len(means)))
