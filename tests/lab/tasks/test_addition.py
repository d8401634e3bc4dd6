"""The addition grid, for a model with known answers and through the commands a user types."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from megatape.data.synthetic.addition_problems import ALPHABET, AdditionTask, prepare_addition
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.tasks import addition
from megatape.lab.tasks.addition import Addition, AdditionGrid
from megatape.lab.tasks.engine.runner import evaluate
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import Workers

TOKENIZER = character_tokenizer(ALPHABET)
TASK = AdditionTask(digits=2, per_cell=20, seed=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("addition") / "data"
    prepare_addition(TASK, path, lambda tokens: None)
    return path


# A model's answer ids, computed from the operands and the correct ids
Answer = Callable[[int, int, list[int]], list[int]]


def right_answer(a: int, b: int, answer: list[int]) -> list[int]:
    return answer


class Calculator:
    """Model that adds correctly, and whose answers `change` then changes."""

    device = torch.device("cpu")

    def __init__(self, change: Answer, positions: int = 100) -> None:
        self.config = SimpleNamespace(max_position_embeddings=positions)
        self.change = change

    def generate(self, tokens: Tensor, attention_mask: Tensor, max_new_tokens: int, do_sample: bool) -> Tensor:
        assert attention_mask.all()
        assert not do_sample
        rows = []
        for row in tokens.tolist():
            assert row[0] == TOKENIZER.bos_id
            operands = TOKENIZER.decode(row).removesuffix("=").split("+")
            a, b = [int(reversed_digits[::-1]) for reversed_digits in operands]
            correct = [*TOKENIZER.encode(str(a + b)[::-1]), TOKENIZER.eos_id]
            answer = self.change(a, b, correct)[:max_new_tokens]
            padding = [0] * (max_new_tokens - len(answer))
            rows.append(row + answer + padding)
        return torch.tensor(rows)


class CharacterTokenizer:
    """The tokenizer as transformers would load it."""

    def __len__(self) -> int:
        return TOKENIZER.vocab_size

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [*TOKENIZER.begin, *TOKENIZER.encode(text)]}


def loaded(change: Answer = right_answer, positions: int = 100) -> LoadedModel:
    return LoadedModel("calculator", Calculator(change, positions), CharacterTokenizer())


def evaluate_addition(model: LoadedModel, data: Path, max_digits: int | None = None) -> AdditionGrid:
    return evaluate(Addition(data, max_digits), model)


def is_answered_right(a: int, b: int) -> bool:
    """Whether `partly_right` answers a + b right."""
    return len(str(a)) > len(str(b)) or a % 2 == 0


def partly_right(a: int, b: int, answer: list[int]) -> list[int]:
    if is_answered_right(a, b):
        return answer
    return [5, *answer[1:]]


@pytest.mark.parametrize("batch_size", [512, 7])
def test_every_cell_gets_its_own_answers(data: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    monkeypatch.setattr(addition, "BATCH_SIZE", batch_size)

    grid = evaluate_addition(loaded(partly_right), data)

    assert grid.trained_digits == 2
    for a_digits, b_digits in product(range(1, 5), repeat=2):
        problems = TASK.test_problems(a_digits, b_digits)
        num_right = 0
        for problem in problems:
            # A first digit happening to be the token 5 is not corrupted.
            is_unchanged = TOKENIZER.encode(problem.answer)[0] == 5
            num_right += is_answered_right(problem.a, problem.b) or is_unchanged
        assert grid.problems[a_digits - 1][b_digits - 1] == len(problems)
        assert grid.correct[a_digits - 1][b_digits - 1] == num_right
    assert grid.accuracy[3][0] == 1.0
    assert 0.2 < grid.accuracy[0][3] < 0.8


def test_means_over_cells(data: Path) -> None:
    """Each mean is over cells, not over problems."""
    grid = evaluate_addition(loaded(partly_right), data)

    cells = np.array(grid.accuracy)
    trained = cells[:2, :2]
    assert grid.mean == pytest.approx(cells.mean())
    assert grid.inside == pytest.approx(trained.mean())
    assert grid.beyond == pytest.approx((cells.sum() - trained.sum()) / 12)
    by_digits = grid.by_longer_operand
    assert by_digits[1] == cells[0, 0]
    assert by_digits[2] == pytest.approx(np.mean([cells[1, 0], cells[1, 1], cells[0, 1]]))
    assert by_digits[4] == pytest.approx(np.mean([*cells[3], *cells[:3, 3]]))


def without_the_last_digit(a: int, b: int, answer: list[int]) -> list[int]:
    return answer[:-2] + [answer[-1]]


def not_reversed(a: int, b: int, answer: list[int]) -> list[int]:
    if answer[0] == answer[-2]:
        return [5, *answer]
    return answer[:-1][::-1] + answer[-1:]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda a, b, answer: answer[:-1] + [7], id="no end"),
        pytest.param(lambda a, b, answer: answer[:-1], id="no room"),
        pytest.param(without_the_last_digit, id="short"),
        pytest.param(not_reversed, id="not reversed"),
    ],
)
def test_an_almost_right_answer_is_wrong(data: Path, change: Answer) -> None:
    assert evaluate_addition(loaded(change), data, max_digits=3).mean == 0


def test_right_answers_count(data: Path) -> None:
    assert evaluate_addition(loaded(), data, max_digits=3).mean == 1


def test_grid_of_trained_lengths(data: Path) -> None:
    grid = evaluate_addition(loaded(), data, max_digits=2)

    assert grid.mean == 1.0
    assert grid.inside == 1.0
    assert grid.beyond is None


def test_interval_of_a_mean_over_unequal_cells(data: Path) -> None:
    """The interval's number of trials is four times the harmonic mean of the cells' problems."""
    problems = [len(TASK.test_problems(a, b)) for a, b in product((1, 2), repeat=2)]
    num_trials = 16 / sum(1 / num_problems for num_problems in problems)
    assert num_trials > min(problems)
    assert num_trials < sum(problems)

    trained, _ = evaluate_addition(loaded(), data, max_digits=2).measures

    assert trained.interval == pytest.approx((100 * num_trials / (num_trials + 1.96**2), 100), 1e-4)


def test_model_needs_positions_for_the_longest_problem(data: Path) -> None:
    evaluate_addition(loaded(positions=16), data)
    with pytest.raises(ValueError, match=r"4 digits need 16 positions, but calculator has 15 \(model.max_positions\)"):
        evaluate_addition(loaded(positions=15), data)


def test_data_of_another_kind_are_refused(data_directory: Path) -> None:
    with pytest.raises(ValueError, match="kind 'text', not 'addition'"):
        evaluate_addition(loaded(), data_directory)


def train(config: str, data: Path, run_directory: Path, workers: Path) -> Path:
    """Train a small model for 20 steps and return its checkpoint."""
    settings = {
        "run.directory": run_directory,
        "data.path": data,
        "data.sequence_length": 12,
        "model.max_positions": 16,
        "model.num_layers": 2,
        "model.hidden_size": 32,
        "model.num_heads": 4,
        "training.steps": 20,
        "training.global_batch_size": 16,
        "training.micro_batch_size": 16,
        "optimizer.learning_rate": 0.01,
    }
    words = ["pretrain", "--config", config]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    with Workers(words, 1, workers) as processes:
        assert processes.statuses() == [0], processes.logs()
    return run_directory / "checkpoints" / "step-00000020"


@pytest.mark.parametrize("encoding", ["tape", pytest.param("rope", marks=pytest.mark.slow)])
def test_checkpoint_and_export_have_the_same_grid(command: Command, data: Path, tmp_path: Path, encoding: str) -> None:
    """A model is trained briefly, exported and evaluated by the commands that a user types."""
    checkpoint = train(f"configs/{encoding}_addition_5.json", data, tmp_path / "run", tmp_path / "workers")
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] - 1
    exported = tmp_path / "exported"
    status, _, errors = command("export", checkpoint, exported)
    assert status == 0, errors

    results = []
    for model in (checkpoint, exported):
        out = tmp_path / "evaluated" / model.name
        status, printed, errors = command("evaluate", "addition", model, "--data", data, "--output", out)
        assert status == 0, errors
        assert "all 4 x 4 lengths" in printed
        folder = out / "addition" / model.name
        assert (folder / "addition.png").read_bytes().startswith(b"\x89PNG")
        results.append(json.loads((folder / "results.json").read_text()))
        assert results[-1].pop("model")["name"] == str(model)

    of_checkpoint, of_export = results
    assert of_checkpoint == of_export
    assert [len(row) for row in of_checkpoint["details"]["accuracy"]] == [4, 4, 4, 4]


def test_missing_model_is_refused(command: Command, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"

    status, _, errors = command("evaluate", "addition", tmp_path / "nowhere", "--data", data, "--output", out)

    assert status == 2
    assert "nowhere: no such folder" in errors
    assert not out.exists()


def test_model_of_another_tokenizer_is_refused(data: Path) -> None:
    class ReversingTokenizer(CharacterTokenizer):
        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": super().__call__(text)["input_ids"][::-1]}

    model = loaded()
    model.tokenizer = ReversingTokenizer()

    with pytest.raises(
        ValueError, match="the tokenizer of calculator .* is not that of .*: give a model that was trained on this data"
    ):
        evaluate_addition(model, data)
