"""Passkey prompts are the paper's, and an answer counts only if it is the number."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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

# Of what the authors' eval_retrieval.py (VITA-Group/TAPE at 466d9e6) gives for its eight lengths and seeds 0 to 19.
SHA256 = "09cbb7fb008725518a6abdf66cda1516294ae680bb0062fd49b15daadcb60882"
CHARACTERS = (66374, 148292, 209734, 291654, 373568, 435006, 516932, 598854)


class Letters:
    """A tokenizer with an id for each character, after a beginning token."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *map(ord, text)]}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(token) for token in ids if token > 1 or not skip_special_tokens)


class Reader:
    """A model that finds the number; `change` then alters the answer, given the prompt and the number."""

    device = torch.device("cpu")

    def __init__(self, change: Callable[[str, str], str] = lambda prompt, key: key, positions: int = 40000) -> None:
        self.config = SimpleNamespace(max_position_embeddings=positions)
        self.change, self.batches = change, []  # type: ignore[var-annotated]

    def generate(self, tokens: Tensor, attention_mask: Tensor, max_new_tokens: int, do_sample: bool) -> Tensor:
        assert attention_mask.all() and not do_sample
        self.batches.append(tuple(tokens.shape))
        rows = []
        for row in tokens.tolist():
            prompt = "".join(map(chr, row[1:]))
            (key,) = set(re.findall(r"\d+", prompt))
            answer = [*map(ord, f" {self.change(prompt, key)}")][:max_new_tokens]
            rows.append(row + answer + [0] * (max_new_tokens - len(answer)))
        return torch.tensor(rows)


def loaded(model: Reader) -> LoadedModel:
    return LoadedModel("a model", model, Letters())


def test_prompts_are_the_papers() -> None:
    digest = hashlib.sha256()
    sizes = []
    for length in EXTENSION_PASSKEY.lengths:
        questions = [authors_question(length, seed) for seed in range(20)]
        sizes.append(sum(len(question.prompt) for question in questions))
        for question in questions:
            digest.update(f"{question.prompt}\0{question.key}\n".encode())
    assert tuple(sizes) == CHARACTERS and digest.hexdigest() == SHA256


def test_right_answers_count() -> None:
    """A model that reads everything is always right, one that repeats the last number of an earlier question never; questions
    of several lengths are answered together."""
    model = Reader()
    result = evaluate(Passkey(lengths=(1000, 2000)), loaded(model))
    assert [(score.tokens, score.correct, score.trials) for score in result.scores] == [
        (1 + CHARACTERS[number] / 20, 20, 20) for number in (0, 1)
    ]
    assert {size for _, size in model.batches} == {1 + len(authors_question(1000, s).prompt) for s in range(20)} | {
        1 + len(authors_question(2000, s).prompt) for s in range(20)
    }
    assert all(batch * size <= 2**15 for batch, size in model.batches)
    wrong = Reader(lambda prompt, key: str(int(key) + 1))
    assert [score.correct for score in evaluate(Passkey(lengths=(1000,)), loaded(wrong)).scores] == [0]
    short = Reader(lambda prompt, key: key[:-1])
    assert [score.correct for score in evaluate(Passkey(lengths=(1000,)), loaded(short)).scores] == [0]
    assert all(len(row) == len(EXTENSION_PASSKEY.lengths) for row in EXTENSION_PASSKEY.rows.values())
    assert Passkey().paper()["TAPE, Llama 2 7B"]["passkey at 7000 (%)"] == 95 and not Passkey("grid").paper()


def test_grid() -> None:
    """Prompts fill a length, the number is at its depth, and what a model of short memory misses shows where it should."""

    def forgetful(prompt: str, key: str) -> str:
        return key if len(prompt) - prompt.index(key) < 500 else "0"

    result = evaluate(Passkey("grid", (600, 1024), 10), loaded(Reader(forgetful)))
    assert [(score.length, score.depth) for score in result.scores] == [
        (length, depth) for length in (600, 1024) for depth in DEPTHS
    ]
    for score in result.scores:
        assert score.length - len(GARBAGE) - 1 < score.tokens + len(" 12345") <= score.length
    assert [score.accuracy for score in result.scores] == [100.0] * 5 + [0.0, 0.0, 100.0, 100.0, 100.0]
    odd = loaded(Reader(lambda prompt, key: key if int(key) % 2 else "0"))
    half = evaluate(Passkey("grid", (600,), 100), odd).scores[0]
    assert half.error == pytest.approx(100 * (half.share * (1 - half.share) / 100) ** 0.5) and 3 < half.error <= 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("authors", (100,), None), "lengths 100 is too short for `protocol` authors: give at least 274"),
        (("grid", (200,), None), "lengths 200: the shortest question has "),
        (("authors", (8000,), None), "but a model has 1000 positions"),
    ],
)
def test_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        evaluate(Passkey(*arguments), loaded(Reader(positions=1000)))


def test_command(command: Command, tmp_path: Path) -> None:
    """An untrained model, from its export: the files are written, and it finds nothing."""
    (tmp_path / "tokenizer.model").write_bytes(train_tokenizer([f"{TASK} {GARBAGE} 0123456789\n"] * 5, VOCAB_SIZE - 10))
    checkpoint, _ = memory_checkpoint(tmp_path / "tokenizer.model", max_positions=1024)
    exported = tmp_path / "exported"
    export(checkpoint, exported)
    words = ("evaluate", "passkey", exported, "--protocol", "grid", "--lengths", "700", "--trials", "2", "--output")
    status, output, errors = command(*words, tmp_path / "out")
    assert status == 0, errors
    assert "passkey (grid): 700 tokens 0%" in output
    out = tmp_path / "out" / "passkey" / "exported"
    content = json.loads((out / "results.json").read_text())
    assert [(cell["depth"], cell["correct"]) for cell in content["details"]["cells"]] == [(depth, 0) for depth in DEPTHS]
    (first, *_) = content["details"]["cells"]
    of_two = [0, pytest.approx(100 * 1.96**2 / (2 + 1.96**2), rel=1e-4)]
    assert [first[name] for name in ("accuracy (%)", "error (%)", "interval (%)")] == [0.0, 0.0, of_two]
    interval = [0, pytest.approx(100 * 1.96**2 / (10 + 1.96**2), rel=1e-4)]
    assert content["measures"] == [{"name": "passkey at 700 (%)", "value": 0.0, "error": 0.0, "n": 10, "interval": interval}]
    assert "| 0 (0 to 27.8) " in output
    assert (out / "passkey.png").stat().st_size > 1000
    faults = {"700,x": "--lengths: must be a valid integer", "0": "--lengths: must be greater", "9,8": "in ascending order"}
    for lengths, fault in faults.items():
        status, _, errors = command(*words[:6], lengths, "--output", tmp_path / "none")
        assert status == 2 and fault in errors
