"""Sources of C4's layout, and the hub on local files."""

import gzip
from pathlib import Path

import pytest

from tests.helpers.data.sources import json_lines, no_hub  # noqa: F401 (no_hub is a fixture)


@pytest.fixture
def c4(tmp_path: Path) -> Path:
    """C4's own layout: numbered gzip shards and a validation file beside them."""
    for number, texts in enumerate([("one", "two\nlines"), ("three ✓",)]):
        (tmp_path / f"c4-train.{number:05d}-of-00002.json.gz").write_bytes(gzip.compress(json_lines(*texts)))
    (tmp_path / "c4-validation.00000-of-00001.json.gz").write_bytes(gzip.compress(json_lines("held out")))
    return tmp_path
