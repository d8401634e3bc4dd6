"""Documents imported from token files end with end tokens."""

from pathlib import Path

import numpy as np
import pytest

from megatape.data.formats.documents import divided
from megatape.data.shards.index import load_index
from tests.helpers.data.token_files import TOKEN_FILES, Import
from tests.helpers.processes.command import assert_refused


def test_documents_without_end_tokens_are_refused(import_data: Import, bare_documents: Path) -> None:
    result = import_data("megatron", bare_documents)
    assert_refused(result, "bare: document 0 has the end token of")
    assert "nowhere" in result.errors
    assert "--append-eos" in result.errors


def test_end_tokens_are_appended_on_request(import_data: Import, bare_documents: Path, tmp_path: Path) -> None:
    result = import_data("megatron", bare_documents, "--append-eos")
    assert result.status == 0, result.errors
    assert "skipped 1 empty document\n" in result.output
    assert "note: 3 of 3 documents do not begin with token 1" in result.output
    splits = load_index(tmp_path / "out").splits.values()
    assert sum(split.tokens for split in splits) == (5 + 1) + (300 + 1) + (70 + 1)


def test_end_tokens_cannot_be_appended_to_a_flat_file(import_data: Import, tmp_path: Path) -> None:
    result = import_data("flat", tmp_path / "x", "--append-eos")
    assert "--append-eos: files of format flat do not say" in result.errors


def test_a_stream_that_ends_within_a_document_gets_an_end_token(import_data: Import, tmp_path: Path) -> None:
    """The last document in llm-foundry's file does not continue in the next input."""
    path = TOKEN_FILES / "mds/foundry"
    result = import_data("mds", path, "--input", path, path)
    assert result.status == 0, result.errors
    assert "2 inputs end within a document, to which the end token was added" in result.output
    splits = load_index(tmp_path / "out").splits.values()
    assert sum(split.tokens for split in splits) == 602
    assert sum(split.documents for split in splits) == 6


def test_a_document_without_end_is_not_collected() -> None:
    endless = (np.full(1000, 7) for _ in iter(int, 1))
    with pytest.raises(ValueError, match=r"x: 6,000 tokens without the end token, 2"):
        list(divided(endless, 2, Path("x"), max_tokens=5000))
