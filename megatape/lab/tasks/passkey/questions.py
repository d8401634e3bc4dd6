"""Passkey questions, by protocol.

authors  prompts of the paper (arXiv 2501.00712, section 4.3), character for character; they come from landmark attention
         (arXiv 2305.16300) via LongLoRA
grid     prompts of exact token lengths, with the number at given depths
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal

import numpy as np

from megatape.errors import UserError, flag
from megatape.lab.paper import EXTENSION_PASSKEY
from megatape.lab.tasks.engine.lengths import usual_lengths
from megatape.lab.tasks.engine.model import ModelOutline

Protocol = Literal["authors", "grid"]

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you about the "
    "important information there."
)
GARBAGE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
FACT = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
# Protocol `authors` assumes this number of characters per token, and rounds the garbage down to a multiple of GARBAGE_STEP
# characters.
CHARACTERS_PER_TOKEN = 3.75
GARBAGE_STEP = 1024
# Share of the garbage before the number, in protocol `grid`.
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Default number of questions for each length and depth.
DEFAULT_TRIALS: dict[Protocol, int] = {"authors": 20, "grid": 100}


@dataclass(frozen=True)
class Question:
    """A prompt, and the number that must follow it after a space."""

    prompt: str
    key: str


@dataclass(frozen=True)
class QuestionGroup:
    """Questions with equal length and depth.

    Attributes:
        length: Text length in tokens.
        depth: Share of the garbage before the number, None in protocol `authors`, which draws it.
        questions: A question per trial.
    """

    length: int
    depth: float | None
    questions: list[Question]


# Value of --lengths, None for the protocol's own.
Lengths = tuple[int, ...] | None


def count_tokens(model: ModelOutline, question: Question) -> int:
    """Count the tokens in a question, including its answer."""
    return len(model.tokenizer(f"{question.prompt} {question.key}")["input_ids"])


def authors_questions(model: ModelOutline, lengths: Lengths, trials: int) -> Iterator[QuestionGroup]:
    """Yield the paper's questions, `trials` for each length."""
    for length in lengths or EXTENSION_PASSKEY.lengths:
        min_length = ceil(GARBAGE_STEP / CHARACTERS_PER_TOKEN)
        if length < min_length:
            raise UserError(
                f"{flag('lengths')} {length} is too short for {flag('protocol')} authors: give at least {min_length}, or "
                f"{flag('protocol')} grid"
            )
        questions = [authors_question(length, seed) for seed in range(trials)]
        yield QuestionGroup(length, None, questions)


def authors_question(length: int, seed: int) -> Question:
    """Build the paper's prompt for about `length` Llama 2 tokens: five lines, with garbage cut by characters."""
    num_garbage = int(CHARACTERS_PER_TOKEN * length // GARBAGE_STEP * GARBAGE_STEP)
    draw = np.random.RandomState(seed)
    before = draw.randint(0, num_garbage)
    key = str(draw.randint(1, 50000))
    garbage = " ".join([GARBAGE] * (num_garbage // len(GARBAGE) + 1))
    lines = (TASK, garbage[:before], FACT.format(key=key), garbage[: num_garbage - before], QUESTION)
    return Question("\n".join(lines), key)


def grid_questions(model: ModelOutline, lengths: Lengths, trials: int) -> Iterator[QuestionGroup]:
    """Yield questions with exact lengths, `trials` for each length and depth."""
    for length in lengths or usual_lengths(model.max_positions):
        shortest = grid_tokens(model)
        if shortest > length:
            raise UserError(
                f"{flag('lengths')} {length}: the shortest question has {shortest} tokens of {model.name}: give more"
            )
        sentence_tokens = max(1, grid_tokens(model, 2) - shortest)
        too_many = length // sentence_tokens + 2
        num_sentences = bisect_right(range(1, too_many), length, key=partial(grid_tokens, model))
        for depth in DEPTHS:
            questions = [_grid_question(num_sentences, depth, seed) for seed in range(trials)]
            yield QuestionGroup(length, depth, questions)


def grid_tokens(model: ModelOutline, num_sentences: int = 1) -> int:
    """Count the tokens of a `grid` question including its answer, by default the shortest question."""
    question = _grid_question(num_sentences, depth=0.5, seed=0)
    return count_tokens(model, question)


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


# Protocol -> generator of its questions.
PROTOCOLS: dict[Protocol, Callable[[ModelOutline, Lengths, int], Iterator[QuestionGroup]]] = {
    "authors": authors_questions,
    "grid": grid_questions,
}
