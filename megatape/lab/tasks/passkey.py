"""Passkey retrieval: a number in one line of a long text must be repeated at its end.

Protocols are ways to make the questions:
authors  the prompts of the paper (arXiv 2501.00712, section 4.3), character for character; they come from landmark attention
         (arXiv 2305.16300) by way of LongLoRA
grid     prompts of given token lengths, with the number at given depths
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from megatape.errors import UserError
from megatape.lab.paper import EXTENSION_NAMES, EXTENSION_PASSKEY
from megatape.lab.pictures import Grid, heat_map
from megatape.lab.tasks.engine.lengths import LengthList, equal_lengths, usual_lengths
from megatape.lab.tasks.engine.task import EvaluationModel, Interval, Measure, ModelOutline, Task, wilson
from megatape.utils.options import Count, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about the "
    "important information there."
)
GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
FACT = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of `grid`: the share of the garbage before the number


@dataclass(frozen=True)
class Question:
    """A prompt, and the number that the model must continue it with, after a space.

    Attributes:
        prompt: Text up to the number.
        key: The number.
    """

    prompt: str
    key: str


Lengths = tuple[int, ...] | None  # of --lengths
Cells = Iterator[tuple[int, float | None, list[Question]]]  # the questions of one length and, in `grid`, one depth


@dataclass(frozen=True)
class Prompt:
    """A question in the model's tokens.

    Attributes:
        length: Of its cell.
        depth: Of its cell.
        text: The prompt.
        key: The number.
        tokens: Ids of the prompt, int32.
        answer_size: Tokens that the answer may have.
    """

    length: int
    depth: float | None
    text: str
    key: str
    tokens: np.ndarray
    answer_size: int


@dataclass(frozen=True)
class Prediction:
    """The answer to a question. tokens: of the prompt."""

    length: int
    depth: float | None
    tokens: int
    prompt: str
    prediction: str
    reference: str
    correct: bool


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

    @property
    def interval(self) -> Interval:
        """Wilson interval of the fraction, in %."""
        return wilson(self.accuracy, self.trials)


def _pooled(scores: Iterable[Score]) -> list[Score]:
    """Neighbours of the same length and depth as one."""
    pools = []
    for (length, depth), group in groupby(scores, lambda score: (score.length, score.depth)):
        cells = list(group)
        tokens = fmean(cell.tokens for cell in cells)
        correct = sum(cell.correct for cell in cells)
        pools.append(Score(length, depth, tokens, correct, sum(cell.trials for cell in cells)))
    return pools


@dataclass(frozen=True)
class PasskeyScores:
    """Results of all cells, depths from 0 to 1 within a length."""

    protocol: str
    scores: list[Score]

    @property
    def by_length(self) -> list[Score]:
        """Results of each length, its depths together."""
        return _pooled(replace(score, depth=None) for score in self.scores)

    @property
    def summary(self) -> str:
        """One line with the accuracy at each length."""
        parts = (f"{score.length} tokens {score.accuracy:.0%}" for score in self.by_length)
        return f"passkey ({self.protocol}): {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """The accuracy at each length."""
        return [Measure(_name(s.length), 100 * s.accuracy, 100 * s.error, s.trials, s.interval) for s in self.by_length]

    def draw(self, figure: "Figure") -> None:
        """Lengths across, depths upwards."""
        rows: dict[float | None, list[float]] = {}
        for score in self.scores:
            rows.setdefault(score.depth, []).append(score.accuracy)
        ticks = list(dict.fromkeys(score.length for score in self.scores)), ["any" if row is None else row for row in rows]
        labels = "length (tokens)", "depth of the number"
        heat_map(figure, Grid(list(rows.values()), "right answers (%)", labels, ticks))

    def describe(self) -> dict[str, Any]:
        """The results of each length and depth."""
        names = ("accuracy", "error", "interval")
        return {"cells": [asdict(score) | {name: getattr(score, name) for name in names} for score in self.scores]}


@dataclass(frozen=True)
class Passkey(Task[Prompt, Prediction, PasskeyScores]):
    """The passkey task of `megatape evaluate`. Lengths and trials that are None are those of the protocol.

    Attributes:
        protocol: the paper's prompts, or prompts of exact lengths with the number at five depths
        lengths: text lengths in tokens, for passkeys of `authors` those of Llama 2 (default for
            those: 1000,2000,...,8000; else powers of two from 256 to the model's maximum)
        trials: questions of each length and depth (default for authors: 20; else 100)
    """

    protocol: Literal["authors", "grid"] = "authors"
    lengths: Annotated[LengthList | None, option(metavar="L,L,...")] = None
    trials: Annotated[Count | None, option(metavar="N")] = None

    prediction = Prediction

    def batches(self, model: ModelOutline) -> list[list[Prompt]]:
        """Prompts of equal length, so that nothing is padded.

        Raises:
            UserError: A length leaves no room for the question, or prompts exceed the model's maximum positions.
        """
        batches = []
        trials = self.trials or (20 if self.protocol == "authors" else 100)
        for length, depth, questions in PROTOCOLS[self.protocol](model, self.lengths, trials):
            prompts = [_prompt(model, length, depth, question) for question in questions]
            batches += equal_lengths(prompts, lambda prompt: len(prompt.tokens))
        return batches

    def run(self, model: EvaluationModel, batch: list[Prompt]) -> list[Prediction]:
        """Greedy answers. One is right if its text is the number, in as many tokens as that has."""
        continuations = model.continuations(
            [prompt.tokens.tolist() for prompt in batch], max(prompt.answer_size for prompt in batch)
        )
        predictions = []
        for prompt, ids in zip(batch, continuations, strict=True):
            answer = model.tokenizer.decode(ids[: prompt.answer_size], skip_special_tokens=False).strip()
            size = len(prompt.tokens)
            predictions.append(
                Prediction(prompt.length, prompt.depth, size, prompt.text, answer, prompt.key, answer == prompt.key)
            )
        return predictions

    def result(self, predictions: list[Prediction]) -> PasskeyScores:
        return PasskeyScores(self.protocol, _pooled(Score(p.length, p.depth, p.tokens, p.correct, 1) for p in predictions))

    def paper(self) -> dict[str, dict[str, float]]:
        """Figure 5."""
        names = [_name(length) for length in EXTENSION_PASSKEY.lengths]
        return {
            f"{EXTENSION_NAMES[method]}, Llama 2 7B": dict(zip(names, shares, strict=True))
            for method, shares in EXTENSION_PASSKEY.rows.items()
            if self.protocol == "authors"
        }


def _name(length: int) -> str:
    return f"passkey at {length} (%)"


def _prompt(model: ModelOutline, length: int, depth: float | None, question: Question) -> Prompt:
    tokens = np.array(model.tokenizer(question.prompt)["input_ids"], np.int32)
    # A tokenizer may join the last letters of the prompt with the answer; it is the number of tokens that counts.
    size = len(model.tokenizer(f"{question.prompt} {question.key}")["input_ids"]) - len(tokens)
    if len(tokens) + size > model.max_positions:
        raise UserError(
            f"lengths {length}: a question has {len(tokens) + size} tokens with its answer, but {model.name} has "
            f"{model.max_positions} positions (model.max_positions): give shorter `lengths`"
        )
    return Prompt(length, depth, question.prompt, question.key, tokens, size)


def authors_question(length: int, seed: int) -> Question:
    """The paper's prompt for about `length` tokens of Llama 2: five lines, the garbage cut by characters."""
    num_garbage = int(3.75 * length // 1024 * 1024)
    draw = np.random.RandomState(seed)
    before = draw.randint(0, num_garbage)
    key = str(draw.randint(1, 50000))
    garbage = " ".join([GARBAGE] * (num_garbage // len(GARBAGE) + 1))
    lines = (TASK, garbage[:before], FACT.format(key=key), garbage[: num_garbage - before], QUESTION)
    return Question("\n".join(lines), key)


def authors(model: ModelOutline, lengths: Lengths, trials: int) -> Cells:
    """The paper's questions: `trials` of each length."""
    for length in lengths or EXTENSION_PASSKEY.lengths:
        if 3.75 * length < 1024:
            raise UserError(f"lengths {length} is too short for `protocol` authors: give at least 274, or `protocol` grid")
        yield length, None, [authors_question(length, seed) for seed in range(trials)]


def grid(model: ModelOutline, lengths: Lengths, trials: int) -> Cells:
    """Questions of exact lengths at five depths: `trials` of each."""
    for length in lengths or usual_lengths(model.max_positions):
        shortest = grid_tokens(model)
        if shortest > length:
            raise UserError(f"lengths {length}: the shortest question has {shortest} tokens of {model.name}: give more")
        too_many = length // max(1, grid_tokens(model, 2) - shortest) + 2
        num_sentences = bisect_right(range(1, too_many), length, key=partial(grid_tokens, model))
        for depth in DEPTHS:
            yield length, depth, [_grid_question(num_sentences, depth, seed) for seed in range(trials)]


def grid_tokens(model: ModelOutline, num_sentences: int = 1) -> int:
    """Tokens of a question of `grid` with its answer, by default of the shortest question."""
    question = _grid_question(num_sentences, 0.5, 0)
    return len(model.tokenizer(f"{question.prompt} {question.key}")["input_ids"])


def _grid_question(num_sentences: int, depth: float, seed: int) -> Question:
    key = str(np.random.RandomState(seed).randint(10000, 100000))
    before = round(depth * num_sentences)
    parts = ([GARBAGE] * before, [FACT.format(key=key)], [GARBAGE] * (num_sentences - before))
    return Question("\n".join([TASK, *(" ".join(part) for part in parts if part), QUESTION]), key)


# Value of --protocol -> (model, lengths, trials) -> cells.
PROTOCOLS = {"authors": authors, "grid": grid}
