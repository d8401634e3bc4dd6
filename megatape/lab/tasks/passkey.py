"""Passkey retrieval: the model must repeat a number from one line of a long text at its end.

Protocols for making questions:
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
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Interval, Measure, wilson
from megatape.lab.tasks.engine.task import Task
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
# Shares of the garbage before the number, in the protocol `grid`.
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Default numbers of questions of each length and depth.
DEFAULT_TRIALS = {"authors": 20, "grid": 100}


@dataclass(frozen=True)
class Question:
    """A prompt with the number that must follow it, after a space.

    Attributes:
        prompt: Text up to the number.
        key: The number.
    """

    prompt: str
    key: str


# Value of --lengths.
Lengths = tuple[int, ...] | None
# Length, depth (only in `grid`) and questions of each cell.
Cells = Iterator[tuple[int, float | None, list[Question]]]


@dataclass(frozen=True)
class Prompt:
    """A question in the model's tokens.

    Attributes:
        length: Length of the cell.
        depth: Depth of the cell.
        text: Text of the prompt.
        key: The number.
        tokens: Ids of the prompt, int32.
        answer_size: Maximum number of tokens in the answer.
    """

    length: int
    depth: float | None
    text: str
    key: str
    tokens: np.ndarray
    answer_size: int


@dataclass(frozen=True)
class Prediction:
    """The answer to a question. `tokens` is the number of tokens in the prompt."""

    length: int
    depth: float | None
    tokens: int
    prompt: str
    prediction: str
    reference: str
    correct: bool


@dataclass(frozen=True)
class Score:
    """Results of one length and depth.

    Attributes:
        length: Length of the cell.
        depth: Depth of the cell, None for all depths or without depths.
        tokens: Mean number of tokens in the prompts.
        correct: Number of right answers.
        trials: Number of questions.
    """

    length: int
    depth: float | None
    tokens: float
    correct: int
    trials: int

    @property
    def share(self) -> float:
        """Share of right answers, 0 to 1."""
        return self.correct / self.trials

    @property
    def accuracy(self) -> float:
        """Right answers in %."""
        return 100 * self.share

    @property
    def error(self) -> float:
        """Binomial standard error of the accuracy in %."""
        return 100 * math.sqrt(self.share * (1 - self.share) / self.trials)

    @property
    def interval(self) -> Interval:
        """Wilson interval of the accuracy in %."""
        return wilson(self.share, self.trials)


def _pooled(scores: Iterable[Score]) -> list[Score]:
    """Combine consecutive scores of the same length and depth."""
    pools = []
    for (length, depth), group in groupby(scores, lambda score: (score.length, score.depth)):
        cells = list(group)
        tokens = fmean(cell.tokens for cell in cells)
        correct = sum(cell.correct for cell in cells)
        trials = sum(cell.trials for cell in cells)
        pools.append(Score(length, depth, tokens, correct, trials))
    return pools


@dataclass(frozen=True)
class PasskeyScores:
    """Results of all cells, ordered by length and then by depth."""

    protocol: str
    scores: list[Score]

    @property
    def by_length(self) -> list[Score]:
        """Results of each length, over all depths."""
        return _pooled(replace(score, depth=None) for score in self.scores)

    @property
    def summary(self) -> str:
        """One line with the accuracy at each length."""
        parts = (f"{score.length} tokens {score.accuracy:.0f}%" for score in self.by_length)
        return f"passkey ({self.protocol}): {', '.join(parts)}"

    @property
    def measures(self) -> list[Measure]:
        """The accuracy at each length."""
        measures = []
        for score in self.by_length:
            name = _name(score.length)
            measures.append(Measure(name, score.accuracy, score.error, score.trials, score.interval))
        return measures

    def draw(self, figure: "Figure") -> None:
        """Draw a heat map with lengths on the horizontal axis and depths on the vertical one."""
        rows: dict[float | None, list[float]] = {}
        for score in self.scores:
            rows.setdefault(score.depth, []).append(score.share)
        lengths = list(dict.fromkeys(score.length for score in self.scores))
        depths: list[float | str] = []
        for depth in rows:
            if depth is None:
                depths.append("any")
            else:
                depths.append(depth)
        labels = ("length (tokens)", "depth of the number")
        heat_map(figure, Grid(list(rows.values()), "right answers (%)", labels, (lengths, depths)))

    def describe(self) -> dict[str, Any]:
        """Return the results of each length and depth."""
        cells = []
        for score in self.scores:
            percentages = {"accuracy (%)": score.accuracy, "error (%)": score.error, "interval (%)": score.interval}
            cells.append(asdict(score) | percentages)
        return {"cells": cells}


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
        """Make batches of prompts of equal length, so that nothing is padded.

        Raises:
            UserError: A length leaves no room for the question, or prompts exceed the model's maximum positions.
        """
        trials = self.trials
        if trials is None:
            trials = DEFAULT_TRIALS[self.protocol]
        batches = []
        for length, depth, questions in PROTOCOLS[self.protocol](model, self.lengths, trials):
            prompts = [_prompt(model, length, depth, question) for question in questions]
            batches += equal_lengths(prompts, lambda prompt: len(prompt.tokens))
        return batches

    def run(self, model: EvaluationModel, batch: list[Prompt]) -> list[Prediction]:
        """Answer the questions greedily. An answer is right if it is the number, in as many tokens as the number has."""
        prompts = [prompt.tokens.tolist() for prompt in batch]
        num_tokens = max(prompt.answer_size for prompt in batch)
        continuations = model.continuations(prompts, num_tokens)
        predictions = []
        for prompt, ids in zip(batch, continuations, strict=True):
            answer = model.tokenizer.decode(ids[: prompt.answer_size], skip_special_tokens=False).strip()
            prediction = Prediction(
                length=prompt.length,
                depth=prompt.depth,
                tokens=len(prompt.tokens),
                prompt=prompt.text,
                prediction=answer,
                reference=prompt.key,
                correct=answer == prompt.key,
            )
            predictions.append(prediction)
        return predictions

    def result(self, predictions: list[Prediction]) -> PasskeyScores:
        scores = [Score(each.length, each.depth, each.tokens, each.correct, trials=1) for each in predictions]
        return PasskeyScores(self.protocol, _pooled(scores))

    def paper(self) -> dict[str, dict[str, float]]:
        """Return the values of the paper's Figure 5, which are for its own prompts."""
        if self.protocol != "authors":
            return {}
        names = [_name(length) for length in EXTENSION_PASSKEY.lengths]
        rows = {}
        for method, shares in EXTENSION_PASSKEY.rows.items():
            rows[f"{EXTENSION_NAMES[method]}, Llama 2 7B"] = dict(zip(names, shares, strict=True))
        return rows


def _name(length: int) -> str:
    return f"passkey at {length} (%)"


def _prompt(model: ModelOutline, length: int, depth: float | None, question: Question) -> Prompt:
    """Encode a question. Raise UserError if the model has too few positions for it."""
    tokens = np.array(model.tokenizer(question.prompt)["input_ids"], np.int32)
    # A tokenizer may join the last letters of the prompt with the answer. Only the number of tokens matters.
    num_tokens = _count_tokens(model, question)
    if num_tokens > model.max_positions:
        raise UserError(
            f"lengths {length}: a question has {num_tokens} tokens with its answer, but {model.name} has "
            f"{model.max_positions} positions (model.max_positions): give shorter `lengths`"
        )
    return Prompt(length, depth, question.prompt, question.key, tokens, answer_size=num_tokens - len(tokens))


def _count_tokens(model: ModelOutline, question: Question) -> int:
    """Return the number of tokens of a question with its answer."""
    return len(model.tokenizer(f"{question.prompt} {question.key}")["input_ids"])


def authors_question(length: int, seed: int) -> Question:
    """Make the paper's prompt for about `length` tokens of Llama 2: five lines, with garbage cut by characters."""
    num_garbage = int(3.75 * length // 1024 * 1024)
    draw = np.random.RandomState(seed)
    before = draw.randint(0, num_garbage)
    key = str(draw.randint(1, 50000))
    garbage = " ".join([GARBAGE] * (num_garbage // len(GARBAGE) + 1))
    lines = (TASK, garbage[:before], FACT.format(key=key), garbage[: num_garbage - before], QUESTION)
    return Question("\n".join(lines), key)


def authors(model: ModelOutline, lengths: Lengths, trials: int) -> Cells:
    """Yield the paper's questions, `trials` for each length."""
    for length in lengths or EXTENSION_PASSKEY.lengths:
        if 3.75 * length < 1024:
            raise UserError(f"lengths {length} is too short for `protocol` authors: give at least 274, or `protocol` grid")
        yield length, None, [authors_question(length, seed) for seed in range(trials)]


def grid(model: ModelOutline, lengths: Lengths, trials: int) -> Cells:
    """Yield questions of exact lengths, `trials` for each length and depth."""
    for length in lengths or usual_lengths(model.max_positions):
        shortest = grid_tokens(model)
        if shortest > length:
            raise UserError(f"lengths {length}: the shortest question has {shortest} tokens of {model.name}: give more")
        sentence_tokens = max(1, grid_tokens(model, 2) - shortest)
        too_many = length // sentence_tokens + 2
        num_sentences = bisect_right(range(1, too_many), length, key=partial(grid_tokens, model))
        for depth in DEPTHS:
            yield length, depth, [_grid_question(num_sentences, depth, seed) for seed in range(trials)]


def grid_tokens(model: ModelOutline, num_sentences: int = 1) -> int:
    """Return the number of tokens of a question of `grid` with its answer, by default of the shortest question."""
    question = _grid_question(num_sentences, depth=0.5, seed=0)
    return _count_tokens(model, question)


def _grid_question(num_sentences: int, depth: float, seed: int) -> Question:
    key = str(np.random.RandomState(seed).randint(10000, 100000))
    num_before = round(depth * num_sentences)
    num_after = num_sentences - num_before
    lines = [TASK]
    if num_before:
        lines.append(" ".join([GARBAGE] * num_before))
    lines.append(FACT.format(key=key))
    if num_after:
        lines.append(" ".join([GARBAGE] * num_after))
    lines.append(QUESTION)
    return Question("\n".join(lines), key)


# Value of --protocol -> (model, lengths, trials) -> cells.
PROTOCOLS = {"authors": authors, "grid": grid}
