"""Data directories shared by the tests for merging and appending."""

from pathlib import Path

import pytest

from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.merged_folders import prepared


@pytest.fixture
def folders(tmp_path: Path, tokenizer: Tokenizer) -> list[Path]:
    """Prepare three data directories with two units each: web, books and code."""
    return [prepared(tmp_path, name, tokenizer) for name in ("web", "books", "code")]
