"""Passkey retrieval (arXiv 2501.00712, section 4.3): a number in one line of a long text must be repeated at its end.

The prompts of `authors` are those of the paper, character for character; they come from landmark attention (arXiv 2305.16300)
by way of LongLoRA. `grid` has prompts of given token lengths, with the number at given depths.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from megatape.tasks.greedy import continuations
from megatape.tasks.heat_map import Grid, draw_heat_map
from megatape.tasks.lengths import parse_lengths
from megatape.tasks.task import Task

if TYPE_CHECKING:
    from megatape.hf.loading import LoadedModel

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about the "
    "important information there."
)
GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
FACT = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"

AUTHORS_LENGTHS = tuple(range(1000, 9000, 1000))
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of `grid`: the share of the garbage in front of the number
BATCH_TOKENS = 2**15  # of prompts that are answered together

# Figure 5 of the paper: Llama-2-7B at AUTHORS_LENGTHS, of 20 prompts each.
PAPER = {
    "LoRA": (0.40, 0.40, 0.35, 0.35, 0.30, 0.35, 0.40, 0.35),
    "LongLoRA": (0.40, 0.35, 0.40, 0.35, 0.50, 0.50, 0.50, 0.45),
    "Theta": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.95),
    "TAPE": (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.95, 1.0),
}


@dataclass(frozen=True)
class Question:
    """A prompt, and the number that the model must continue it with, after a space."""

    prompt: str
    key: str


@dataclass(frozen=True)
class Cell:
    """The questions of one length and, in `grid`, one depth."""

    length: int
    depth: float | None
    questions: list[Question]


@dataclass(frozen=True)
class Score:
    """Results of one cell: mean prompt length in tokens, right answers, questions."""

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
    def summary(self) -> str:
        """One line with the accuracy at each length."""
        parts = []
        for length, cells in groupby(self.scores, lambda score: score.length):
            scores = list(cells)
            parts.append(f"{length} tokens {fmean(score.accuracy for score in scores):.0%}")
        return f"passkey ({self.protocol}): {', '.join(parts)}"

    def draw(self, title: str, path: Path) -> None:
        """Write a PNG: lengths across, depths upwards."""
        rows: dict[float | None, list[float]] = {}
        for score in self.scores:
            rows.setdefault(score.depth, []).append(score.accuracy)
        ticks = list(dict.fromkeys(score.length for score in self.scores)), ["any" if row is None else row for row in rows]
        grid = Grid(list(rows.values()), "right answers (%)", ("length (tokens)", "depth of the number"), ticks)
        draw_heat_map(grid, title, path)

    def describe(self) -> dict[str, Any]:
        """All results, for a JSON file, with the paper's."""
        cells = [vars(score) | {"accuracy": score.accuracy, "standard_error": score.error} for score in self.scores]
        return {"cells": cells} | ({"paper": PAPER} if self.protocol == "authors" else {})


@dataclass(frozen=True)
class Passkey(Task):
    """The passkey task of `megatape evaluate`; its fields are arguments of `evaluate_passkey`."""

    protocol: str
    lengths: tuple[int, ...] | None
    trials: int | None

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--protocol",
            choices=tuple(_PROTOCOLS),
            default="authors",
            help="the paper's prompts, or prompts of exact lengths with the number at five depths (default %(default)s)",
        )
        parser.add_argument(
            "--lengths",
            type=parse_lengths,
            metavar="L,L,...",
            help="prompt lengths in tokens, for authors those of Llama 2 (default for authors: 1000,2000,...,8000; for grid: "
            "powers of two from 256 to the model's maximum)",
        )
        parser.add_argument(
            "--trials",
            type=int,
            metavar="N",
            help="questions of each length and depth (default for authors: 20; for grid: 100)",
        )

    def evaluate(self, loaded: "LoadedModel") -> PasskeyScores:
        return evaluate_passkey(loaded, self.protocol, self.lengths, self.trials)


def evaluate_passkey(
    loaded: "LoadedModel", protocol: str = "authors", lengths: tuple[int, ...] | None = None, trials: int | None = None
) -> PasskeyScores:
    """Ask the questions of a protocol, greedily; an answer is right if it is the number in as many tokens as that has.

    lengths and trials: as the command's options. Raises ValueError for a number of trials below 1, for a length that leaves no
    room for the question, and for prompts beyond the model's maximum positions."""
    if trials is not None and trials < 1:
        raise ValueError(f"--trials is {trials}: give at least 1")
    cells = _PROTOCOLS[protocol](loaded, lengths, trials)
    return PasskeyScores(protocol, [_score(loaded, cell) for cell in cells])


def authors_question(length: int, seed: int) -> Question:
    """The paper's prompt for about `length` tokens of Llama 2: five lines, the garbage cut by characters."""
    import numpy as np

    num_garbage = int(3.75 * length // 1024 * 1024)
    draw = np.random.RandomState(seed)
    before, key = draw.randint(0, num_garbage), str(draw.randint(1, 50000))
    garbage = " ".join([GARBAGE] * (num_garbage // len(GARBAGE) + 1))
    lines = (TASK, garbage[:before], FACT.format(key=key), garbage[: num_garbage - before], QUESTION)
    return Question("\n".join(lines), key)


def _authors(loaded: "LoadedModel", lengths: tuple[int, ...] | None, trials: int | None) -> Iterator[Cell]:
    for length in lengths or AUTHORS_LENGTHS:
        if 3.75 * length < 1024:
            raise ValueError(f"--lengths {length} is too short for --protocol authors: give at least 274, or --protocol grid")
        yield Cell(length, None, [authors_question(length, seed) for seed in range(20 if trials is None else trials)])


def _grid(loaded: "LoadedModel", lengths: tuple[int, ...] | None, trials: int | None) -> Iterator[Cell]:
    limit = loaded.model.config.max_position_embeddings
    for length in lengths or tuple(2**power for power in range(8, int(math.log2(limit)) + 1)) or (limit,):
        num_sentences = _sentences_that_fit(loaded, length)
        for depth in DEPTHS:
            yield Cell(
                length,
                depth,
                [_grid_question(num_sentences, depth, seed) for seed in range(100 if trials is None else trials)],
            )


def grid_tokens(loaded: "LoadedModel", num_sentences: int = 1) -> int:
    """Tokens of a question of `grid` with its answer and so many sentences of garbage, by default the shortest question."""
    question = _grid_question(num_sentences, 0.5, 0)
    return len(loaded.tokenizer(f"{question.prompt} {question.key}")["input_ids"])


def _grid_question(num_sentences: int, depth: float, seed: int) -> Question:
    import numpy as np

    key = str(np.random.RandomState(seed).randint(10000, 100000))
    before = round(depth * num_sentences)
    parts = ([GARBAGE] * before, [FACT.format(key=key)], [GARBAGE] * (num_sentences - before))
    return Question("\n".join([TASK, *(" ".join(part) for part in parts if part), QUESTION]), key)


def _sentences_that_fit(loaded: "LoadedModel", length: int) -> int:
    """How often the garbage can be repeated in a prompt of at most `length` tokens with its answer."""
    shortest = grid_tokens(loaded)
    if shortest > length:
        raise ValueError(f"--lengths {length}: the shortest question has {shortest} tokens of {loaded.name}: give more")
    few, many = 1, length // max(1, grid_tokens(loaded, 2) - shortest) + 2
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if grid_tokens(loaded, middle) <= length else (few, middle)
    return few


_PROTOCOLS: dict[str, Callable[["LoadedModel", tuple[int, ...] | None, int | None], Iterator[Cell]]] = {
    "authors": _authors,
    "grid": _grid,
}


def _score(loaded: "LoadedModel", cell: Cell) -> Score:
    tokenizer, limit = loaded.tokenizer, loaded.model.config.max_position_embeddings
    prompts = [tokenizer(question.prompt)["input_ids"] for question in cell.questions]
    # A tokenizer may join the last letters of the prompt with the answer; it is the number of tokens that counts.
    answers = [
        len(tokenizer(f"{question.prompt} {question.key}")["input_ids"]) - len(prompt)
        for question, prompt in zip(cell.questions, prompts, strict=True)
    ]
    longest = max(len(prompt) + answer for prompt, answer in zip(prompts, answers, strict=True))
    if longest > limit:
        raise ValueError(
            f"--lengths {cell.length}: a question has {longest} tokens with its answer, but {loaded.name} has {limit} "
            "positions (model.max_positions): give shorter --lengths"
        )
    correct = 0
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
    for size, group in groupby(order, key=lambda number: len(prompts[number])):
        numbers, batch = list(group), max(1, BATCH_TOKENS // size)
        for begin in range(0, len(numbers), batch):
            chosen = numbers[begin : begin + batch]
            found = continuations(loaded, [prompts[number] for number in chosen], max(answers[number] for number in chosen))
            for number, ids in zip(chosen, found, strict=True):
                correct += tokenizer.decode(ids[: answers[number]]).strip() == cell.questions[number].key
    return Score(cell.length, cell.depth, fmean(map(len, prompts)), correct, len(prompts))
