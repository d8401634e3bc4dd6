"""Passkey prompts equal the paper's, and an answer counts only if it is the number."""

import hashlib
import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor

from megatape.data.tokenizers.sentencepiece import train_tokenizer
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.paper import EXTENSION_PASSKEY
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.passkey.questions import DEPTHS, GARBAGE, TASK, authors_question
from megatape.lab.tasks.passkey.task import Passkey
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE, memory_checkpoint
from tests.helpers.processes.command import Command

# Prompts of the authors' eval_retrieval.py (VITA-Group/TAPE at 466d9e6) for its eight lengths and seeds 0 to 19: hash of all of
# them, and number of characters by length.
SHA256 = "09cbb7fb008725518a6abdf66cda1516294ae680bb0062fd49b15daadcb60882"
CHARACTERS = (66374, 148292, 209734, 291654, 373568, 435006, 516932, 598854)
SEEDS = range(20)

# A model's answer, computed from the prompt and the number in it
Answer = Callable[[str, str], str]


class Letters:
    """Tokenizer with an id for each character, after a beginning token."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *map(ord, text)]}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(token) for token in ids if token > 1 or not skip_special_tokens)


def right_answer(prompt: str, key: str) -> str:
    return key


class Reader:
    """Model that finds the number.

    Attributes:
        batches: Shapes of the batches it was called with, [sequences, tokens].
    """

    device = torch.device("cpu")

    def __init__(self, answer: Answer = right_answer, positions: int = 40000) -> None:
        self.config = SimpleNamespace(max_position_embeddings=positions)
        self.answer = answer
        self.batches: list[tuple[int, ...]] = []

    def generate(self, tokens: Tensor, attention_mask: Tensor, max_new_tokens: int, do_sample: bool) -> Tensor:
        assert attention_mask.all()
        assert not do_sample
        self.batches.append(tuple(tokens.shape))
        rows = []
        for row in tokens.tolist():
            prompt = "".join(map(chr, row[1:]))
            (key,) = set(re.findall(r"\d+", prompt))
            answer = [*map(ord, f" {self.answer(prompt, key)}")][:max_new_tokens]
            padding = [0] * (max_new_tokens - len(answer))
            rows.append(row + answer + padding)
        return torch.tensor(rows)


def loaded(model: Reader) -> LoadedModel:
    return LoadedModel("a model", model, Letters())


def test_prompts_equal_the_papers() -> None:
    digest = hashlib.sha256()
    num_characters = []
    for length in EXTENSION_PASSKEY.lengths:
        questions = [authors_question(length, seed) for seed in SEEDS]
        num_characters.append(sum(len(question.prompt) for question in questions))
        for question in questions:
            digest.update(f"{question.prompt}\0{question.key}\n".encode())

    assert tuple(num_characters) == CHARACTERS
    assert digest.hexdigest() == SHA256


def test_right_answers_count() -> None:
    result = evaluate(Passkey(lengths=(1000, 2000)), loaded(Reader()))

    shorter, longer = result.scores
    assert shorter.correct == 20
    assert shorter.trials == 20
    assert longer.correct == 20
    assert longer.trials == 20
    assert shorter.tokens == 1 + CHARACTERS[0] / 20
    assert longer.tokens == 1 + CHARACTERS[1] / 20


def test_questions_of_one_number_of_tokens_are_answered_together() -> None:
    model = Reader()

    evaluate(Passkey(lengths=(1000, 2000)), loaded(model))

    expected_sizes = set()
    for length in (1000, 2000):
        expected_sizes |= {1 + len(authors_question(length, seed).prompt) for seed in SEEDS}
    assert {num_tokens for _, num_tokens in model.batches} == expected_sizes
    for num_sequences, num_tokens in model.batches:
        assert num_sequences * num_tokens <= 2**15


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda prompt, key: str(int(key) + 1), id="another number"),
        pytest.param(lambda prompt, key: key[:-1], id="without the last digit"),
    ],
)
def test_wrong_answers_do_not_count(answer: Answer) -> None:
    (score,) = evaluate(Passkey(lengths=(1000,)), loaded(Reader(answer))).scores

    assert score.correct == 0


def test_paper_has_results_for_its_own_protocol() -> None:
    for row in EXTENSION_PASSKEY.rows.values():
        assert len(row) == len(EXTENSION_PASSKEY.lengths)
    assert Passkey().paper()["TAPE, Llama 2 7B"]["passkey at 7000 (%)"] == 95
    assert not Passkey("grid").paper()


def test_prompts_of_a_grid_fill_their_length() -> None:
    result = evaluate(Passkey("grid", (600, 1024), 10), loaded(Reader()))

    assert [(score.length, score.depth) for score in result.scores] == list(product((600, 1024), DEPTHS))
    for score in result.scores:
        num_tokens = score.tokens + len(" 12345")
        assert num_tokens > score.length - len(GARBAGE) - 1
        assert num_tokens <= score.length


def test_grid_shows_what_a_model_of_short_memory_misses() -> None:
    """The number is at its depth of the prompt."""

    def forgetful(prompt: str, key: str) -> str:
        if len(prompt) - prompt.index(key) < 500:
            return key
        return "0"

    result = evaluate(Passkey("grid", (600, 1024), 10), loaded(Reader(forgetful)))

    accuracies: dict[int, list[float]] = {600: [], 1024: []}
    for score in result.scores:
        accuracies[score.length].append(score.accuracy)
    assert accuracies == {600: [100.0] * 5, 1024: [0.0, 0.0, 100.0, 100.0, 100.0]}


def test_standard_error_of_a_cell() -> None:
    """The model knows the odd numbers."""

    def answer(prompt: str, key: str) -> str:
        if int(key) % 2:
            return key
        return "0"

    score = evaluate(Passkey("grid", (600,), 100), loaded(Reader(answer))).scores[0]

    assert score.error == pytest.approx(100 * (score.share * (1 - score.share) / 100) ** 0.5)
    assert 3 < score.error <= 5


class Refusal(NamedTuple):
    """Length that is refused."""

    message: str
    protocol: Literal["authors", "grid"]
    length: int


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("lengths 100 is too short for `protocol` authors: give at least 274", "authors", 100),
        Refusal("lengths 200: the shortest question has ", "grid", 200),
        Refusal("but a model has 1000 positions", "authors", 8000),
    ],
    ids=lambda refusal: refusal.message,
)
def test_lengths_without_room_are_refused(refusal: Refusal) -> None:
    task = Passkey(refusal.protocol, (refusal.length,), None)

    with pytest.raises(ValueError, match=re.escape(refusal.message)):
        evaluate(task, loaded(Reader(positions=1000)))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """An untrained model."""
    tokenizer = tmp_path / "tokenizer.model"
    tokenizer.write_bytes(train_tokenizer([f"{TASK} {GARBAGE} 0123456789\n"] * 5, VOCAB_SIZE - 10))
    checkpoint, _ = memory_checkpoint(tokenizer, max_positions=1024)
    export(checkpoint, tmp_path / "exported")
    return tmp_path / "exported"


def wilson_limit(trials: int) -> Any:
    """Return the upper limit of Wilson's interval in percent, for no right answer."""
    return pytest.approx(100 * 1.96**2 / (trials + 1.96**2), rel=1e-4)


def test_command_evaluates_an_export(command: Command, exported: Path, tmp_path: Path) -> None:
    words = ("evaluate", "passkey", exported, "--protocol", "grid", "--lengths", "700", "--trials", "2")

    status, output, errors = command(*words, "--output", tmp_path / "out")

    assert status == 0, errors
    assert "passkey (grid): 700 tokens 0%" in output
    assert "| 0 (0 to 27.8) " in output
    folder = tmp_path / "out" / "passkey" / "exported"
    results = json.loads((folder / "results.json").read_text())
    cells = results["details"]["cells"]
    assert [cell["depth"] for cell in cells] == list(DEPTHS)
    assert [cell["correct"] for cell in cells] == [0] * len(DEPTHS)
    assert cells[0]["accuracy (%)"] == 0.0
    assert cells[0]["error (%)"] == 0.0
    assert cells[0]["interval (%)"] == [0, wilson_limit(2)]
    assert results["measures"] == [
        {"name": "passkey at 700 (%)", "value": 0.0, "error": 0.0, "n": 10, "interval": [0, wilson_limit(10)]}
    ]
    assert (folder / "passkey.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ("700,x", "--lengths: must be a valid integer"),
        ("0", "--lengths: must be greater"),
        ("9,8", "in ascending order"),
    ],
)
def test_bad_lengths_are_refused(command: Command, tmp_path: Path, lengths: str, message: str) -> None:
    words = ("evaluate", "passkey", tmp_path, "--protocol", "grid", "--lengths", lengths, "--output", tmp_path / "none")

    status, _, errors = command(*words)

    assert status == 2
    assert message in errors
