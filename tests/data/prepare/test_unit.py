"""One unit: names of any characters are escaped in its tables and counts."""

import os
from pathlib import Path

from pyarrow import parquet

from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer


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
