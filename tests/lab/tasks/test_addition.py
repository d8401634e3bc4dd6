"""The addition grid, for a model with known answers and through the commands a user types."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


class Calculator:
    """A model that adds correctly; `corrupt` then changes its answer, given the operands and the correct ids."""

    device = torch.device("cpu")

    def __init__(self, corrupt: Callable[[int, int, list[int]], list[int]], positions: int = 100) -> None:
        self.config = SimpleNamespace(max_position_embeddings=positions)
        self.corrupt = corrupt

    def generate(self, tokens: Tensor, attention_mask: Tensor, max_new_tokens: int, do_sample: bool) -> Tensor:
        assert attention_mask.all() and not do_sample
        rows = []
        for row in tokens.tolist():
            assert row[0] == TOKENIZER.bos_id
            a, b = (int(number[::-1]) for number in TOKENIZER.decode(row).removesuffix("=").split("+"))
            answer = [*TOKENIZER.encode(str(a + b)[::-1]), TOKENIZER.eos_id]
            answer = self.corrupt(a, b, answer)[:max_new_tokens]
            rows.append(row + answer + [0] * (max_new_tokens - len(answer)))
        return torch.tensor(rows)


class CharacterTokenizer:
    """The tokenizer as transformers would load it."""

    def __len__(self) -> int:
        return TOKENIZER.vocab_size

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [*TOKENIZER.begin, *TOKENIZER.encode(text)]}


def loaded(corrupt: Callable[[int, int, list[int]], list[int]] = lambda a, b, answer: answer, **options: Any) -> LoadedModel:
    return LoadedModel("calculator", Calculator(corrupt, **options), CharacterTokenizer())


def evaluate_addition(model: LoadedModel, data: Path, max_digits: int | None = None) -> AdditionGrid:
    return evaluate(Addition(data, max_digits), model)


@pytest.mark.parametrize("batch_size", [512, 7])
def test_every_cell_gets_its_own_answers(data: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int) -> None:
    """The model is right if the first operand is longer than the second, and otherwise only if it is even."""
    monkeypatch.setattr(addition, "BATCH_SIZE", batch_size)

    def good(a: int, b: int) -> bool:
        return len(str(a)) > len(str(b)) or a % 2 == 0

    grid = evaluate_addition(loaded(lambda a, b, answer: answer if good(a, b) else [5, *answer[1:]]), data)
    assert grid.trained_digits == 2
    for a_digits in range(1, 5):
        for b_digits in range(1, 5):
            problems = TASK.test_problems(a_digits, b_digits)
            assert grid.problems[a_digits - 1][b_digits - 1] == len(problems)
            # A first digit that happens to be the token 5 is not corrupted.
            right = sum(good(p.a, p.b) or TOKENIZER.encode(p.answer)[0] == 5 for p in problems)
            assert grid.correct[a_digits - 1][b_digits - 1] == right
    cells = grid.accuracy
    trained = [cells[0][0], cells[0][1], cells[1][0], cells[1][1]]
    everything = [share for row in cells for share in row]
    assert grid.inside == pytest.approx(sum(trained) / 4)
    assert grid.mean == pytest.approx(sum(everything) / 16)
    assert grid.beyond == pytest.approx((sum(everything) - sum(trained)) / 12)
    by_digits = grid.by_longer_operand
    assert by_digits[1] == cells[0][0] and by_digits[2] == pytest.approx((cells[1][0] + cells[1][1] + cells[0][1]) / 3)
    assert by_digits[4] == pytest.approx(sum([*cells[3], cells[0][3], cells[1][3], cells[2][3]]) / 7)
    assert cells[3][0] == 1.0 and 0.2 < cells[0][3] < 0.8


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda a, b, answer: answer[:-1] + [7],
        lambda a, b, answer: answer[:-1],
        lambda a, b, answer: answer[:-2] + [answer[-1]],
        lambda a, b, answer: answer[:-1][::-1] + answer[-1:] if answer[0] != answer[-2] else [5, *answer],
    ],
    ids=["no end", "no room", "short", "not reversed"],
)
def test_an_almost_right_answer_is_wrong(data: Path, corrupt: Callable[[int, int, list[int]], list[int]]) -> None:
    assert evaluate_addition(loaded(corrupt), data, max_digits=3).mean == 0
    assert evaluate_addition(loaded(), data, max_digits=3).mean == 1


def test_a_grid_of_trained_lengths(data: Path) -> None:
    grid = evaluate_addition(loaded(), data, max_digits=2)
    assert (grid.mean, grid.inside, grid.beyond) == (1.0, 1.0, None)
    trained, _ = grid.measures
    problems = [len(TASK.test_problems(a, b)) for a in (1, 2) for b in (1, 2)]
    alike = 16 / sum(1 / n for n in problems)  # cells of as many problems each would have four times this number
    assert min(problems) < alike < sum(problems) and trained.interval == pytest.approx(
        (100 * alike / (alike + 1.96**2), 100), 1e-4
    )


def test_wrong_arguments(data: Path, data_directory: Path) -> None:
    with pytest.raises(ValueError, match=r"4 digits need 16 positions, but calculator has 15 \(model.max_positions\)"):
        evaluate_addition(loaded(positions=15), data)
    evaluate_addition(loaded(positions=16), data)
    with pytest.raises(ValueError, match="kind 'text', not 'addition'"):
        evaluate_addition(loaded(), data_directory)


@pytest.mark.parametrize("encoding", ["tape", pytest.param("rope", marks=pytest.mark.slow)])
def test_commands(command: Command, data: Path, tmp_path: Path, encoding: str) -> None:
    """Train briefly, then evaluate the checkpoint and its export: both give the same grid and a picture."""
    directory = tmp_path / "run"
    evaluated = tmp_path / "evaluated"
    settings = {
        "run.directory": directory,
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
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    with Workers(["pretrain", "--config", f"configs/{encoding}_addition_5.json", *changes], 1, tmp_path / "workers") as workers:
        assert workers.statuses() == [0], workers.logs()
    losses = [json.loads(line)["loss"] for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] - 1

    checkpoint = directory / "checkpoints" / "step-00000020"
    exported = tmp_path / "exported"
    assert command("export", checkpoint, exported)[0] == 0
    tables = []
    for model in (checkpoint, exported):
        status, printed, errors = command("evaluate", "addition", model, "--data", data, "--output", evaluated / model.name)
        assert status == 0, errors
        assert "all 4 x 4 lengths" in printed
        out = evaluated / model.name / "addition" / model.name
        assert (out / "addition.png").read_bytes().startswith(b"\x89PNG")
        tables.append(json.loads((out / "results.json").read_text()))
    assert [table.pop("model")["name"] for table in tables] == [str(checkpoint), str(exported)]
    assert tables[0] == tables[1]
    assert [len(row) for row in tables[0]["details"]["accuracy"]] == [4] * 4

    for given, folder, message in [
        (tmp_path / "nowhere", "new", "nowhere: no such folder"),
    ]:
        status, _, errors = command("evaluate", "addition", given, "--data", data, "--output", evaluated / folder)
        assert (status, message in errors) == (2, True), errors
    assert not (evaluated / "new").exists()


def test_a_model_of_another_tokenizer(data: Path) -> None:
    class Other(CharacterTokenizer):
        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": super().__call__(text)["input_ids"][::-1]}

    model = loaded()
    model.tokenizer = Other()
    with pytest.raises(
        ValueError, match="the tokenizer of calculator .* is not that of .*: give a model that was trained on this data"
    ):
        evaluate_addition(model, data)
