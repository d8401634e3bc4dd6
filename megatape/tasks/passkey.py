"""Passkey retrieval: a number in one line of a long text must be repeated at its end."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from megatape.errors import UserError
from megatape.options import Count, option
from megatape.tasks.batching import equal_lengths
from megatape.tasks.heat_map import Grid, draw_heat_map
from megatape.tasks.lengths import LengthList
from megatape.tasks.model import EvaluationModel
from megatape.tasks.passkey_questions import AUTHORS_LENGTHS, Cell, Lengths, authors, grid
from megatape.tasks.ruler_questions import ruler
from megatape.tasks.task import Measure, Sample, Task

# --protocol -> (model, lengths, questions of each length and depth) -> cells
PROTOCOLS: dict[str, Callable[[EvaluationModel, Lengths, int | None], Iterator[Cell]]] = {
    "authors": authors,
    "grid": grid,
    "ruler": ruler,
}

# Figure 5 of the paper: Llama-2-7B at AUTHORS_LENGTHS, of 20 prompts each.
PAPER = {
    "LoRA": (0.40, 0.40, 0.35, 0.35, 0.30, 0.35, 0.40, 0.35),
    "LongLoRA": (0.40, 0.35, 0.40, 0.35, 0.50, 0.50, 0.50, 0.45),
    "Theta": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.95),
    "TAPE": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.95, 1.0),
}


@dataclass(frozen=True)
class Prompt:
    """A question in the model's tokens. answer_size: how many the answer may have. alone: the number must be all of them."""

    length: int
    depth: float | None
    text: str
    key: str
    tokens: list[int]
    answer_size: int
    alone: bool


@dataclass(frozen=True)
class Score:
    """Results of one length and depth: mean prompt length in tokens, right answers, questions."""

    length: int
    depth: float | None
    tokens: float
    correct: int
    trials: int

    @property
    def accuracy(self) -> float:
        """Fraction of right answers."""
        return self.correct / self.trials

    @property
    def error(self) -> float:
        """Standard error of the fraction, binomial."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.trials)


@dataclass(frozen=True)
class PasskeyScores:
    """Results of all cells, depths from 0 to 1 within a length."""

    protocol: str
    scores: list[Score]

    @property
    def by_length(self) -> list[Score]:
        """Results of each length, its depths together."""
        found = []
        for length, group in groupby(self.scores, lambda score: score.length):
            cells = list(group)
            correct, trials = (sum(getattr(cell, name) for cell in cells) for name in ("correct", "trials"))
            found.append(Score(length, None, fmean(cell.tokens for cell in cells), correct, trials))
        return found

    @property
    def summary(self) -> str:
        """One line with the accuracy at each length."""
        parts = (f"{score.length} tokens {score.accuracy:.0%}" for score in self.by_length)
        return f"passkey ({self.protocol}): {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """The accuracy at each length."""
        return [Measure(_name(s.length), 100 * s.accuracy, 100 * s.error, s.trials) for s in self.by_length]

    def draw(self, title: str, path: Path) -> None:
        """Write a PNG: lengths across, depths upwards."""
        rows: dict[float | None, list[float]] = {}
        for score in self.scores:
            rows.setdefault(score.depth, []).append(score.accuracy)
        ticks = list(dict.fromkeys(score.length for score in self.scores)), ["any" if row is None else row for row in rows]
        grid = Grid(list(rows.values()), "right answers (%)", ("length (tokens)", "depth of the number"), ticks)
        draw_heat_map(grid, title, path)

    def describe(self) -> dict[str, Any]:
        """The results of each length and depth."""
        return {"cells": [asdict(score) | {"accuracy": score.accuracy, "error": score.error} for score in self.scores]}


@dataclass(frozen=True)
class Passkey(Task[Prompt, PasskeyScores]):
    """The passkey task of `megatape evaluate`.

    protocol: one of PROTOCOLS. lengths: in tokens, for `authors` of Llama 2. trials: questions of each length and depth. None:
    as the protocol has it.
    """

    protocol: Annotated[
        Literal["authors", "grid", "ruler"],
        option("the paper's prompts, prompts of exact lengths with the number at five depths, or RULER's single needle"),
    ] = "authors"
    lengths: Annotated[
        LengthList | None,
        option(
            "text lengths in tokens, for passkeys of `authors` those of Llama 2 (default for those: 1000,2000,...,8000; "
            "else powers of two from 256, for `ruler` 4096, to the model's maximum)",
            metavar="L,L,...",
        ),
    ] = None
    trials: Annotated[
        Count | None, option("questions of each length and depth (default for authors: 20; else 100)", metavar="N")
    ] = None

    def batches(self, model: EvaluationModel) -> list[list[Prompt]]:
        """Prompts of equal length, so that nothing is padded.

        Raises UserError for a number of trials below 1, for a length that leaves no room for the question, and for prompts
        beyond the model's maximum positions.
        """
        batches = []
        for cell in PROTOCOLS[self.protocol](model, self.lengths, self.trials):
            batches += equal_lengths(_prompts(model, cell), lambda prompt: len(prompt.tokens))
        return batches

    def run(self, model: EvaluationModel, batch: list[Prompt]) -> list[Sample]:
        """Greedy answers. One is right if its text is the number, in as many tokens as that has; for `ruler` if it has it."""
        found = model.continuations([prompt.tokens for prompt in batch], max(prompt.answer_size for prompt in batch))
        samples = []
        for prompt, ids in zip(batch, found, strict=True):
            answer = model.tokenizer.decode(ids[: prompt.answer_size], skip_special_tokens=not prompt.alone).strip()
            correct = answer == prompt.key if prompt.alone else prompt.key in answer
            cell = {"length": prompt.length, "depth": prompt.depth, "tokens": len(prompt.tokens)}
            said = {"prompt": prompt.text, "prediction": answer, "reference": prompt.key}
            samples.append(cell | said | {"correct": correct})
        return samples

    def result(self, model: EvaluationModel, samples: list[Sample]) -> PasskeyScores:
        scores = []
        for (length, depth), group in groupby(samples, lambda sample: (sample["length"], sample["depth"])):
            cell = list(group)
            correct = sum(sample["correct"] for sample in cell)
            scores.append(Score(length, depth, fmean(sample["tokens"] for sample in cell), correct, len(cell)))
        return PasskeyScores(self.protocol, scores)

    def paper(self) -> dict[str, dict[str, float]]:
        """Figure 5."""
        if self.protocol != "authors":
            return {}
        return {
            f"{row}, Llama 2 7B": {_name(length): 100 * share for length, share in zip(AUTHORS_LENGTHS, shares, strict=True)}
            for row, shares in PAPER.items()
        }


def _name(length: int) -> str:
    return f"passkey at {length} (%)"


def _prompts(model: EvaluationModel, cell: Cell) -> list[Prompt]:
    prompts = []
    for question in cell.questions:
        tokens = model.tokenizer(question.prompt)["input_ids"]
        size = question.within
        if size is None:
            # A tokenizer may join the last letters of the prompt with the answer; it is the number of tokens that counts.
            size = len(model.tokenizer(f"{question.prompt} {question.key}")["input_ids"]) - len(tokens)
        if len(tokens) + size > model.max_positions:
            raise UserError(
                f"lengths {cell.length}: a question has {len(tokens) + size} tokens with its answer, but {model.name} has "
                f"{model.max_positions} positions (model.max_positions): give shorter `lengths`"
            )
        prompts.append(Prompt(cell.length, cell.depth, question.prompt, question.key, tokens, size, question.within is None))
    return prompts
