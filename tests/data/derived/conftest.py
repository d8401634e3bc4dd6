"""Data directories that the tests of merging and appending share."""

from pathlib import Path

import pytest

from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.helpers.data.merged_folders import prepared


@pytest.fixture
def folders(tmp_path: Path, tokenizer: Tokenizer) -> list[Path]:
    """Three data directories of two units each: web, books and code."""
    return [prepared(tmp_path, name, tokenizer) for name in ("web", "books", "code")]
