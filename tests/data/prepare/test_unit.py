"""One unit: names of any characters are escaped in its tables and counts, and a damaged draft is noticed."""

import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.prepare.preparation import Preparation
from megatape.data.prepare.unit import DOCUMENTS, TOKENS
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.helpers.data_directory import hashes_of
from tests.helpers.preparation import UNIT_BYTES, write_lines


def test_names_that_cannot_be_shown(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """They are escaped where they are stored and printed."""
    folder = tmp_path / "code"
    folder.mkdir()
    for name in (b"\xff.py", b"a\nb.py", b"\x1b[2J.py"):
        (folder / os.fsdecode(name)).write_text(f"text of {name!r}")
    (folder / "c\n.py").write_bytes(b"\xff")
    for number in range(9):
        (folder / f"{number}.py").write_text(f"text {number}")
    index, counts = prepare(Corpus(Source("code", (str(folder),)), 0.5, tokenizer, 0), tmp_path / "out")
    assert counts is not None and counts.bad_examples == [f"{folder}/c\\n.py: invalid UTF-8 (invalid start byte at byte 0)"]
    tables = [table.file for tables in index.document_tables.values() for table in tables]
    places = {place for file in tables for place in parquet.read_table(tmp_path / "out" / file)["place"].to_pylist()}
    assert places > {f"{folder}/{name}.py" for name in ("\\udcff", "a\\nb", "\\x1b[2J")}


@pytest.mark.parametrize("name", [DOCUMENTS, TOKENS])
def test_a_truncated_draft(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It never gives part of its documents; without it the command makes it again."""
    monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", UNIT_BYTES)
    monkeypatch.setattr("megatape.data.prepare.unit.BATCH_CHARACTERS", 1000)
    corpus = Corpus(write_lines(tmp_path / "texts"), 0.1, tokenizer, 0)
    prepare(corpus, tmp_path / "whole")
    compare, draft = Preparation._compare, tmp_path / "out.partial/verdicts/00004"

    def compare_and_truncate(self: Preparation, *arguments: Any) -> None:
        compare(self, *arguments)
        content = (draft / name).read_bytes()
        lines = content[:-1].rpartition(b"\n")[0] + b"\n"
        (draft / name).write_bytes(lines if name == DOCUMENTS else content[:-2])

    with monkeypatch.context() as patch:
        patch.setattr(Preparation, "_compare", compare_and_truncate)
        with pytest.raises(UserError, match=rf"{draft}: corrupted: remove it, and the same command prepares it again"):
            prepare(corpus, tmp_path / "out")
    for file in draft.iterdir():
        file.unlink()
    draft.rmdir()
    prepare(corpus, tmp_path / "out")
    assert hashes_of(tmp_path / "out") == hashes_of(tmp_path / "whole")
