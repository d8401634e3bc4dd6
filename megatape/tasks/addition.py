"""Exact match of greedy answers to addition problems, for every pair of operand lengths."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from megatape.data.addition import AdditionTask, Problem, longest_document
from megatape.data.index import load_index
from megatape.data.tokenizer import Tokenizer
from megatape.data.tokenizer_files import stored_tokenizer
from megatape.tasks.greedy import continuations
from megatape.tasks.heat_map import Grid, draw_heat_map
from megatape.tasks.task import Task

if TYPE_CHECKING:
    from megatape.hf.loading import LoadedModel

BATCH_SIZE = 512  # prompts per call of generate


@dataclass(frozen=True)
class AdditionGrid:
    """Results for operands of 1, 2, ... digits: rows are lengths of the first operand, columns of the second.

    trained_digits  D, the length of the longest operands in the training data
    problems        number of problems in each cell
    correct         number answered exactly: every digit, and the end token"""

    trained_digits: int
    problems: list[list[int]]
    correct: list[list[int]]

    @property
    def accuracy(self) -> list[list[float]]:
        """Fraction of exact answers in each cell."""
        return [
            [right / asked for right, asked in zip(*rows, strict=True)]
            for rows in zip(self.correct, self.problems, strict=True)
        ]

    @property
    def mean(self) -> float:
        """Mean over all cells with equal weights, as the paper reports it."""
        return fmean(share for row in self.accuracy for share in row)

    @property
    def inside(self) -> float:
        """Mean over the cells with both lengths in the training data."""
        return fmean(share for row in self.accuracy[: self.trained_digits] for share in row[: self.trained_digits])

    @property
    def beyond(self) -> float | None:
        """Mean over the other cells; None if there are none."""
        shares = [
            share
            for number, row in enumerate(self.accuracy)
            for share in (row if number >= self.trained_digits else row[self.trained_digits :])
        ]
        return fmean(shares) if shares else None

    @property
    def by_longer_operand(self) -> dict[int, float]:
        """Mean over the cells whose longer operand has this many digits."""
        shares = self.accuracy
        return {
            digits: fmean([*shares[digits - 1][:digits], *(row[digits - 1] for row in shares[: digits - 1])])
            for digits in range(1, len(shares) + 1)
        }

    @property
    def summary(self) -> str:
        """One line with the means."""
        size = len(self.correct)
        beyond = "" if self.beyond is None else f", beyond {self.beyond:.2%}"
        return f"exact match: trained lengths {self.inside:.2%}{beyond}, all {size} x {size} lengths {self.mean:.2%}"

    def draw(self, title: str, path: Path) -> None:
        """Write a PNG of the grid, with a frame around the trained lengths."""
        labels = "digits of the second operand", "digits of the first operand"
        draw_heat_map(Grid(self.accuracy, "exact match (%)", labels, num_framed=self.trained_digits), title, path)

    def describe(self) -> dict[str, Any]:
        """All results, for a JSON file."""
        means = {"mean": self.mean, "inside": self.inside, "beyond": self.beyond}
        return means | asdict(self) | {"accuracy": self.accuracy}


@dataclass(frozen=True)
class Addition(Task):
    """The addition task of `megatape evaluate`; its fields are arguments of `evaluate_addition`."""

    data: Path
    max_digits: int | None

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, required=True, help="folder that `megatape prepare addition` wrote")
        parser.add_argument(
            "--max-digits", type=int, metavar="M", help="longest operands to test (default: twice the trained digits)"
        )

    def evaluate(self, loaded: "LoadedModel") -> AdditionGrid:
        return evaluate_addition(loaded, self.data, self.max_digits)


def evaluate_addition(loaded: "LoadedModel", data: Path, max_digits: int | None = None) -> AdditionGrid:
    """Test a model on the problems of every cell up to `max_digits` digits (None: twice the trained digits).

    data: the directory the model was trained on. Raises ValueError if it does not hold addition data, if its tokenizer is
    not the model's, or if the longest problem exceeds the model's maximum positions."""
    task = AdditionTask.of(data)
    size = 2 * task.digits if max_digits is None else max_digits
    tokenizer = _tokenizer(loaded, data)
    _check_lengths(loaded, size)
    problems: dict[tuple[int, int], list[Problem]] = {
        (a, b): task.test_problems(a, b) for a in range(1, size + 1) for b in range(1, size + 1)
    }
    right = dict.fromkeys(problems, 0)
    # Prompts of equal length need no padding: a batch mixes all cells with the same total number of digits.
    for total in range(2, 2 * size + 1):
        asked = [(cell, problem) for cell, known in problems.items() if sum(cell) == total for problem in known]
        for begin in range(0, len(asked), BATCH_SIZE):
            batch = asked[begin : begin + BATCH_SIZE]
            for (cell, _), exact in zip(batch, _answer(loaded, tokenizer, [problem for _, problem in batch]), strict=True):
                right[cell] += exact
    cells = [[(a, b) for b in range(1, size + 1)] for a in range(1, size + 1)]
    return AdditionGrid(
        trained_digits=task.digits,
        problems=[[len(problems[cell]) for cell in row] for row in cells],
        correct=[[right[cell] for cell in row] for row in cells],
    )


def _answer(loaded: "LoadedModel", tokenizer: Tokenizer, problems: list[Problem]) -> Iterator[bool]:
    """Whether each problem is answered exactly. All prompts must have the same number of tokens."""
    prompts = [[*tokenizer.begin, *tokenizer.encode(problem.prompt)] for problem in problems]
    expected = [[*tokenizer.encode(problem.answer), tokenizer.eos_id] for problem in problems]
    for answer, found in zip(expected, continuations(loaded, prompts, max(map(len, expected))), strict=True):
        yield found[: len(answer)] == answer


def _tokenizer(loaded: "LoadedModel", data: Path) -> Tokenizer:
    """The data's tokenizer. Raises ValueError if the model has another one."""
    tokenizer = stored_tokenizer(data, load_index(data).tokenizer.files)
    text = AdditionTask.of(data).test_problems(1, 1)[0].prompt
    ours, theirs = [*tokenizer.begin, *tokenizer.encode(text)], loaded.tokenizer(text)["input_ids"]
    if len(loaded.tokenizer) != tokenizer.vocab_size or theirs != ours:
        raise ValueError(
            f"the tokenizer of {loaded.name} ({len(loaded.tokenizer)} tokens, {text!r} is {theirs}) is not that of {data} "
            f"({tokenizer.vocab_size} tokens, {text!r} is {ours}): give a model that was trained on this data"
        )
    return tokenizer


def _check_lengths(loaded: "LoadedModel", size: int) -> None:
    if size < 1:
        raise ValueError(f"--max-digits is {size}: give at least 1")
    needed, limit = longest_document(size) - 1, loaded.model.config.max_position_embeddings
    if needed > limit:
        raise ValueError(
            f"problems of {size} digits need {needed} positions, but {loaded.name} has {limit} (model.max_positions): lower "
            "--max-digits, or train with more positions"
        )
