"""Reading the tokens of a text: its formats, its beginning, and refusals."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.tasks.perplexity.text import read_tokens
from tests.helpers.models.known_losses import Pieces, Recorder, Uniform, measure
from tests.helpers.runs.small_run import VOCAB_SIZE


def inputs_from(load: Callable[[Recorder], LoadedModel], data: Path) -> list[int]:
    """Return the tokens that a model reads of a text, in windows of 32."""
    model = Uniform()
    measure(load(model), data, (32,), max_tokens=1000)
    return torch.cat(model.inputs).flatten().tolist()


def test_binary_file_equals_the_data_directory(
    load: Callable[[Recorder], LoadedModel], data_directory: Path, tokens: np.ndarray, tmp_path: Path
) -> None:
    tokens.astype(np.uint16).tofile(tmp_path / "text.bin")
    num_inputs = (tokens.size - 1) // 32 * 32

    assert inputs_from(load, data_directory) == tokens[:num_inputs].tolist()
    assert inputs_from(load, tmp_path / "text.bin") == tokens[:num_inputs].tolist()


def test_text_file_is_tokenized(load: Callable[[Recorder], LoadedModel], data_directory: Path, tmp_path: Path) -> None:
    text = "a text of a few words, again and again. " * 50
    (tmp_path / "text.txt").write_text(text)
    ids = Pieces(data_directory)(text)["input_ids"][:1000]
    num_inputs = (len(ids) - 1) // 32 * 32

    assert inputs_from(load, tmp_path / "text.txt") == ids[:num_inputs]


def test_short_text_is_refused(load: Callable[[Recorder], LoadedModel], tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a few words")

    with pytest.raises(ValueError, match="and one more than the longest length is needed"):
        measure(load(Uniform()), tmp_path / "short.txt", (256,))


def test_tokens_beyond_the_vocabulary_are_refused(load: Callable[[Recorder], LoadedModel], tmp_path: Path) -> None:
    np.full(100, VOCAB_SIZE, np.uint16).tofile(tmp_path / "other.bin")

    with pytest.raises(ValueError, match=f"has the token id {VOCAB_SIZE}, but a model has"):
        measure(load(Uniform()), tmp_path / "other.bin", (32,))


def test_text_that_is_not_utf8_is_refused(load: Callable[[Recorder], LoadedModel], tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ValueError, match="is not UTF-8 text"):
        measure(load(Uniform()), tmp_path / "binary.txt", (32,))


def test_missing_text_is_refused(load: Callable[[Recorder], LoadedModel], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data .*none.txt: no such file or folder"):
        measure(load(Uniform()), tmp_path / "none.txt", (32,))


def test_only_the_beginning_of_a_huge_text_is_read(tmp_path: Path) -> None:
    """Reading and tokenizing all of it would take its size in memory."""
    tokenized: list[str] = []

    def tokenize(text: str) -> dict[str, list[int]]:
        tokenized.append(text)
        return {"input_ids": [*map(ord, text)]}

    model = SimpleNamespace(name="a model", tokenizer=tokenize, vocab_size=256, max_positions=64)
    path = tmp_path / "huge.txt"
    not_utf8 = b"\xff"  # far behind the tokens to read
    path.write_bytes(b"0123456789" * 10_000 + not_utf8)

    tokens = read_tokens(model, path, 50)

    assert tokens.tolist() == [ord("0") + number % 10 for number in range(50)]
    assert len(tokenized[0]) == 64 * 50
