"""Corpus shared by the tests for preparing."""

from dataclasses import replace
from pathlib import Path

import pytest

from megatape.data.prepare.options import PreparationOptions
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.preparation import UNIT_BYTES, write_corpus


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    """Six files of lines in tmp_path / "texts", most of them two units."""
    source = replace(write_corpus(tmp_path / "texts"), unit_bytes=UNIT_BYTES)
    return PreparationOptions(source, 0.1, tokenizer, 0)
