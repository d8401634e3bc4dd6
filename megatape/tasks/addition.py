"""Exact match of greedy answers to addition problems, for every pair of operand lengths."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from megatape.data.prepare.addition import AdditionTask, Problem, longest_document
from megatape.data.shards.index import load_index
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from megatape.options import option
from megatape.tasks.heat_map import Grid, draw_heat_map
from megatape.tasks.model import EvaluationModel
from megatape.tasks.task import Measure, Sample, Task

BATCH_SIZE = 512  # prompts per call of generate


@dataclass(frozen=True)
class AdditionGrid:
    """Results for operands of 1, 2, ... digits: rows are lengths of the first operand, columns of the second.

    trained_digits  D, the length of the longest operands in the training data
    problems        number of problems in each cell
    correct         number answered exactly: every digit, and the end token
    """

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

    @property
    def measures(self) -> list[Measure]:
        """The means, whose standard errors are those of their cells' fractions."""
        size, trained = len(self.correct), self.trained_digits
        cells = [(a, b) for a in range(size) for b in range(size)]
        parts = {
            "trained lengths": [cell for cell in cells if max(cell) < trained],
            "beyond": [cell for cell in cells if max(cell) >= trained],
            "all lengths": cells,
        }
        return [self._measure(f"{name} (%)", part) for name, part in parts.items() if part]

    def _measure(self, name: str, cells: list[tuple[int, int]]) -> Measure:
        problems = [self.problems[a][b] for a, b in cells]
        shares = [self.correct[a][b] / self.problems[a][b] for a, b in cells]
        variances = (share * (1 - share) / number for share, number in zip(shares, problems, strict=True))
        return Measure(name, 100 * fmean(shares), 100 * math.sqrt(sum(variances)) / len(cells), sum(problems))

    def draw(self, title: str, path: Path) -> None:
        """Write a PNG of the grid, with a frame around the trained lengths."""
        labels = "digits of the second operand", "digits of the first operand"
        draw_heat_map(Grid(self.accuracy, "exact match (%)", labels, num_framed=self.trained_digits), title, path)

    def describe(self) -> dict[str, Any]:
        """All results, for a JSON file."""
        means = {"mean": self.mean, "inside": self.inside, "beyond": self.beyond}
        return means | asdict(self) | {"accuracy": self.accuracy}


@dataclass(frozen=True)
class Asked:
    """A problem of the cell with operands of so many digits, in tokens: the prompt, and the answer with the end token."""

    digits: tuple[int, int]
    problem: Problem
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Addition(Task[Asked, AdditionGrid]):
    """The addition task of `megatape evaluate`: the problems of every cell up to `max_digits` digits.

    max_digits: None for twice the trained digits. data: the directory the model was trained on.
    """

    data: Annotated[Path, option("data directory; for addition the one of training")]
    max_digits: Annotated[int | None, option("longest operands to test (default: twice the trained digits)", metavar="M")] = (
        None
    )

    def batches(self, model: EvaluationModel) -> list[list[Asked]]:
        """Prompts of equal length need no padding: a batch mixes all cells with the same total number of digits.

        Raises UserError if `data` does not hold addition data, if its tokenizer is not the model's, or if the longest problem
        exceeds the model's maximum positions.
        """
        task, size = AdditionTask.of(self.data), self._size()
        tokenizer = _tokenizer(model, self.data)
        _check_lengths(model, size)
        batches = []
        for total in range(2, 2 * size + 1):
            asked = [
                Asked(
                    (a, total - a),
                    problem,
                    [*tokenizer.begin, *tokenizer.encode(problem.prompt)],
                    [*tokenizer.encode(problem.answer), tokenizer.eos_id],
                )
                for a in range(max(1, total - size), min(size, total - 1) + 1)
                for problem in task.test_problems(a, total - a)
            ]
            batches += [asked[begin : begin + BATCH_SIZE] for begin in range(0, len(asked), BATCH_SIZE)]
        return batches

    def run(self, model: EvaluationModel, batch: list[Asked]) -> list[Sample]:
        """Greedy answers, in ids: a tokenizer of digits shows less."""
        found = model.continuations([asked.prompt for asked in batch], max(len(asked.answer) for asked in batch))
        return [
            {
                "digits": asked.digits,
                "prompt": asked.problem.prompt,
                "prediction": ids[: len(asked.answer)],
                "reference": asked.answer,
                "correct": ids[: len(asked.answer)] == asked.answer,
            }
            for asked, ids in zip(batch, found, strict=True)
        ]

    def result(self, model: EvaluationModel, samples: list[Sample]) -> AdditionGrid:
        size = self._size()
        problems, correct = ([[0] * size for _ in range(size)] for _ in range(2))
        for sample in samples:
            a, b = sample["digits"]
            problems[a - 1][b - 1] += 1
            correct[a - 1][b - 1] += sample["correct"]
        return AdditionGrid(AdditionTask.of(self.data).digits, problems, correct)

    def _size(self) -> int:
        return 2 * AdditionTask.of(self.data).digits if self.max_digits is None else self.max_digits


def _tokenizer(model: EvaluationModel, data: Path) -> Tokenizer:
    """The data's tokenizer. Raises UserError if the model has another one."""
    tokenizer = stored_tokenizer(data, load_index(data).tokenizer.files)
    text = AdditionTask.of(data).test_problems(1, 1)[0].prompt
    ours, theirs = [*tokenizer.begin, *tokenizer.encode(text)], model.tokenizer(text)["input_ids"]
    if len(model.tokenizer) != tokenizer.vocab_size or theirs != ours:
        raise UserError(
            f"the tokenizer of {model.name} ({len(model.tokenizer)} tokens, {text!r} is {theirs}) is not that of {data} "
            f"({tokenizer.vocab_size} tokens, {text!r} is {ours}): give a model that was trained on this data"
        )
    return tokenizer


def _check_lengths(model: EvaluationModel, size: int) -> None:
    if size < 1:
        raise UserError(f"max_digits is {size}: give at least 1")
    needed, limit = longest_document(size) - 1, model.max_positions
    if needed > limit:
        raise UserError(
            f"problems of {size} digits need {needed} positions, but {model.name} has {limit} (model.max_positions): lower "
            "`max_digits`, or train with more positions"
        )
