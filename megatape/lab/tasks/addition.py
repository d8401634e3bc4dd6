"""Exact match on addition problems, for every pair of operand lengths."""

import math
import sys
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from megatape.data.shards.index import load_index
from megatape.data.synthetic.addition_problems import AdditionTask, Problem, longest_document
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError, flag
from megatape.lab.pictures import Grid, heat_map
from megatape.lab.tasks.engine.model import EvaluationModel, ModelOutline
from megatape.lab.tasks.engine.result import Measure, wilson
from megatape.lab.tasks.engine.task import Task
from megatape.utils.values.options import Count, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Maximum number of prompts in a batch.
BATCH_SIZE = 512
# Row and column in the grid.
Cell = tuple[int, int]


@dataclass(frozen=True)
class AdditionGrid:
    """Results for operands of 1, 2, ... digits. Rows are first operands, columns second operands.

    Attributes:
        trained_digits: Maximum operand length in the training data (D).
        problems: Number of problems in each cell.
        correct: Number of exact answers in each cell, including the end token.
    """

    trained_digits: int
    problems: list[list[int]]
    correct: list[list[int]]

    @property
    def accuracy(self) -> list[list[float]]:
        """Fraction of exact answers by cell."""
        grid = []
        for correct, problems in zip(self.correct, self.problems, strict=True):
            grid.append([right / n for right, n in zip(correct, problems, strict=True)])
        return grid

    @property
    def mean(self) -> float:
        """Mean over all cells with equal weights, as in the paper."""
        return self._mean(self._cells())

    @property
    def inside(self) -> float:
        """Mean over the cells with both operand lengths in the training data."""
        return self._mean(self._cells(last=self.trained_digits))

    @property
    def beyond(self) -> float | None:
        """Mean over all other cells, None if there are none."""
        cells = self._cells(first=self.trained_digits + 1)
        if not cells:
            return None
        return self._mean(cells)

    @property
    def by_longer_operand(self) -> dict[int, float]:
        """Digits in the longer operand -> mean over its cells."""
        means = {}
        for digits in range(1, len(self.correct) + 1):
            means[digits] = self._mean(self._cells(digits, digits))
        return means

    @property
    def summary(self) -> str:
        size = len(self.correct)
        beyond = ""
        if self.beyond is not None:
            beyond = f", beyond {self.beyond:.2%}"
        return f"exact match: trained lengths {self.inside:.2%}{beyond}, all {size} x {size} lengths {self.mean:.2%}"

    @property
    def measures(self) -> list[Measure]:
        """Means over trained lengths, longer ones and all, with standard errors."""
        parts = {
            "trained lengths": self._cells(last=self.trained_digits),
            "beyond": self._cells(first=self.trained_digits + 1),
            "all lengths": self._cells(),
        }
        return [self._measure(f"{name} (%)", cells) for name, cells in parts.items() if cells]

    def draw(self, figure: "Figure") -> None:
        """Draw the grid, framing the trained lengths."""
        labels = ("digits of the second operand", "digits of the first operand")
        heat_map(figure, Grid(self.accuracy, "exact match (%)", labels, num_framed=self.trained_digits))

    def describe(self) -> dict[str, Any]:
        means = {"mean": self.mean, "inside": self.inside, "beyond": self.beyond}
        return means | asdict(self) | {"accuracy": self.accuracy}

    def _cells(self, first: int = 1, last: int = sys.maxsize) -> list[Cell]:
        """Return the cells with `first` to `last` digits in the longer operand."""
        size = min(len(self.correct), last)
        return [(a, b) for a, b in product(range(size), repeat=2) if max(a, b) + 1 >= first]

    def _mean(self, cells: list[Cell]) -> float:
        return fmean(self.correct[a][b] / self.problems[a][b] for a, b in cells)

    def _measure(self, name: str, cells: list[Cell]) -> Measure:
        accuracy = self.accuracy
        problems = [self.problems[a][b] for a, b in cells]
        variances = [accuracy[a][b] * (1 - accuracy[a][b]) / self.problems[a][b] for a, b in cells]
        error = math.sqrt(sum(variances)) / len(cells)
        mean = self._mean(cells)
        # If all cells had equal accuracy, their mean would have the variance of a share of this many problems.
        num_equivalent = len(cells) ** 2 / sum(1 / n for n in problems)
        return Measure(name, 100 * mean, 100 * error, sum(problems), wilson(mean, num_equivalent))


@dataclass(frozen=True)
class Question:
    """A problem in tokens.

    Attributes:
        digits: Operand lengths.
        problem: Problem as text.
        prompt: Prompt ids.
        answer: Answer ids, including the end token.
        trained_digits: Maximum operand length in the training data.
    """

    digits: tuple[int, int]
    problem: Problem
    prompt: list[int]
    answer: list[int]
    trained_digits: int = field(compare=False)


@dataclass(frozen=True)
class Prediction:
    """The answer to a problem, in ids because decoded text would hide special tokens."""

    digits: tuple[int, int]
    prompt: str
    prediction: list[int]
    reference: list[int]
    correct: bool
    trained_digits: int


@dataclass(frozen=True)
class Addition(Task[Question, Prediction, AdditionGrid]):
    """The addition task of `megatape evaluate`: problems for every pair of operand lengths up to `max_digits`.

    Attributes:
        data: data directory; for addition the one of training
        max_digits: longest operands to test (default: twice the trained digits)
    """

    data: Path
    max_digits: Annotated[Count | None, option(metavar="M")] = None

    prediction = Prediction

    def batches(self, model: ModelOutline) -> list[list[Question]]:
        """Make batches of equally long prompts, mixing all cells with the same total number of digits.

        Raises:
            UserError: `data` is not addition data, it has another tokenizer than the model, or the longest problem needs more
                positions than the model has.
        """
        task = AdditionTask.of(self.data)
        size = self.max_digits
        if size is None:
            size = 2 * task.digits
        tokenizer = _load_tokenizer(model, self.data)
        _check_lengths(model, size)
        batches = []
        for total in range(2, 2 * size + 1):
            questions = []
            for a in range(max(1, total - size), min(size, total - 1) + 1):
                b = total - a
                for problem in task.test_problems(a, b):
                    prompt = [*tokenizer.begin, *tokenizer.encode(problem.prompt)]
                    answer = [*tokenizer.encode(problem.answer), tokenizer.eos_id]
                    questions.append(Question((a, b), problem, prompt, answer, task.digits))
            for begin in range(0, len(questions), BATCH_SIZE):
                batches.append(questions[begin : begin + BATCH_SIZE])
        return batches

    def run(self, model: EvaluationModel, batch: list[Question]) -> list[Prediction]:
        prompts = [question.prompt for question in batch]
        num_tokens = max(len(question.answer) for question in batch)
        continuations = model.continuations(prompts, num_tokens)
        predictions = []
        for question, ids in zip(batch, continuations, strict=True):
            answer = ids[: len(question.answer)]
            prediction = Prediction(
                digits=question.digits,
                prompt=question.problem.prompt,
                prediction=answer,
                reference=question.answer,
                correct=answer == question.answer,
                trained_digits=question.trained_digits,
            )
            predictions.append(prediction)
        return predictions

    def result(self, predictions: list[Prediction]) -> AdditionGrid:
        size = max(max(prediction.digits) for prediction in predictions)
        problems = [[0] * size for _ in range(size)]
        correct = [[0] * size for _ in range(size)]
        for prediction in predictions:
            a, b = prediction.digits
            problems[a - 1][b - 1] += 1
            correct[a - 1][b - 1] += prediction.correct
        return AdditionGrid(predictions[0].trained_digits, problems, correct)


def _load_tokenizer(model: ModelOutline, data: Path) -> Tokenizer:
    """Load the data's tokenizer. Raise UserError if the model has another one."""
    tokenizer = stored_tokenizer(data, load_index(data).tokenizer.files)
    text = AdditionTask.of(data).test_problems(1, 1)[0].prompt
    ours = [*tokenizer.begin, *tokenizer.encode(text)]
    theirs = model.tokenizer(text)["input_ids"]
    if len(model.tokenizer) != tokenizer.vocab_size or theirs != ours:
        raise UserError(
            f"the tokenizer of {model.name} ({len(model.tokenizer)} tokens, {text!r} is {theirs}) is not that of {data} "
            f"({tokenizer.vocab_size} tokens, {text!r} is {ours}): give a model that was trained on this data"
        )
    return tokenizer


def _check_lengths(model: ModelOutline, size: int) -> None:
    num_needed = longest_document(size) - 1
    limit = model.max_positions
    if num_needed > limit:
        raise UserError(
            f"problems of {size} digits need {num_needed} positions, but {model.name} has {limit} (model.max_positions): lower "
            f"{flag('max_digits')}, or train with more positions"
        )
