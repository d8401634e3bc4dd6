"""Results of preparing sixteen corpora: ids, document tables, kept documents, and counts stay as they are, bit for bit."""

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import ScoreRule, TextRule, parse_rules
from megatape.data.counts import RecordCounts
from megatape.data.io.records import read_records
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.shards.index import load_index
from megatape.data.sources.source import Source
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from tests.helpers.data.preparation import text_of

NUM_DOCUMENTS = 120
# Characters of `text_of`. Others become byte tokens.
ALPHABET = "Document :0123456789"
SHARE = 0.2
SMALL_UNITS = 4000
ODD_TEXTS = ["", " \n ", "café \u6f22\u5b57 \U0001f600", "</s><s>", "\u2581 mark", "line\r\nline\u2028line", "x" * 3000]


def texts() -> list[str]:
    """Return texts of which some are odd, some equal an earlier one, and some resemble an earlier one."""
    numbers = range(NUM_DOCUMENTS)
    plain = [text_of(number) for number in numbers]
    plain[20:27] = ODD_TEXTS
    plain[40:50] = plain[10:20]
    plain[60:70] = [f"{text} again" for text in plain[0:10]]
    return plain


def records() -> list[Any]:
    """Return records with addresses, missing texts, and values that are no records."""
    written: list[Any] = []
    for number, text in enumerate(texts()):
        record: dict[str, Any] = {"text": text, "url": f"https://a{number % 7}.org/{number}\u200b", "license": "mit"}
        if number % 11 == 0:
            del record["url"]
        written.append(record)
    written[30] = {"text": None}
    written[31] = {"title": "no text"}
    written[32] = ["no", "record"]
    return written


def lines_of(values: list[Any]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def write_lines() -> None:
    """Write two files of lines, with a malformed line, an empty one, a byte order mark, and no line break at the end."""
    lines = lines_of(records()).splitlines(keepends=True)
    lines[33] = b'{"text": "cut\n'
    lines[34] = b" \n"
    lines[35] = b"\xef\xbb\xbf" + lines[35]
    lines[36] = b'{"text": "\xff"}\n'
    lines[37] = b'{"text": "a large number", "number": ' + b"1" * 400 + b"}\n"
    Path("a.jsonl").write_bytes(b"".join(lines[:70]))
    Path("b.jsonl").write_bytes(b"".join(lines[70:]).rstrip(b"\n"))


def write_compressed_lines() -> None:
    for number in range(4):
        Path(f"c4-train.0000{number}-of-00004.json.gz").write_bytes(gzip.compress(lines_of(records()[number::4])))


def write_table() -> None:
    rows = [record for record in records() if isinstance(record, dict) and "text" in record]
    table = pa.table({name: [row.get(name) for row in rows] for name in ("text", "url", "license")})
    parquet.write_table(table, "rows.parquet", row_group_size=50)


def write_text_files() -> None:
    Path("files").mkdir()
    for number, text in enumerate(texts()):
        Path(f"files/{number:03}.txt").write_bytes(text.encode())
    Path("files/bad.txt").write_bytes(b"\xff")


def write_comma_separated() -> None:
    lines = ["text,url"] + [
        '"{}",https://a.org/{}'.format(text.replace("\0", ""), number) for number, text in enumerate(texts())
    ]
    Path("rows.csv").write_bytes("\n".join(lines).encode())


def write_samples() -> None:
    with tarfile.open("samples.tar", "w") as archive:
        for number, text in enumerate(texts()):
            path = Path(f"{number:03}.txt")
            path.write_bytes(text.encode())
            archive.add(path)


@dataclass(frozen=True)
class LastDigit(ScoreRule):
    """Drops texts whose length ends with a small digit."""

    minimum: float = 0.2

    def score(self, text: str) -> float:
        return len(text) % 10 / 10


@dataclass(frozen=True)
class Shout(TextRule):
    """Changes texts with an odd number of ones."""

    def apply(self, text: str) -> str:
        if text.count("1") % 2 == 0:
            return text
        return text.upper()


LINES = Source("jsonl", ("a.jsonl", "b.jsonl"))
C4 = Source("c4", (".",), unit_bytes=1)
EDITED = Cleaning({"shout": Shout(), "last_digit": LastDigit()})


@dataclass(frozen=True)
class Corpus:
    """A corpus: the function writing its files, options, and the digest of what they gave before any change."""

    write: Callable[[], None]
    source: Source
    digest: str
    cleaning: Cleaning = field(default_factory=Cleaning)
    keep_documents: bool = False


CORPORA = {
    "lines, one unit": Corpus(write_lines, LINES, "f58a391a405f7208"),
    "lines, small units": Corpus(write_lines, replace(LINES, unit_bytes=SMALL_UNITS), "b83d5e181fde4001"),
    "lines, duplicates kept": Corpus(
        write_lines, replace(LINES, unit_bytes=SMALL_UNITS), "236f215ac478bd80", Cleaning(drop_duplicates=False)
    ),
    "lines, first documents": Corpus(write_lines, replace(LINES, max_documents=50), "1d3f79e727eb0528"),
    "lines, short records": Corpus(write_lines, replace(LINES, max_record_bytes=2000), "96349ea0280aed33"),
    "lines, documents kept": Corpus(write_lines, LINES, "16ddcd16710e0fb0", keep_documents=True),
    "lines, held-out file": Corpus(write_lines, Source("jsonl", ("a.jsonl",), validation=("b.jsonl",)), "19af2b0eb2503a26"),
    "lines, edited": Corpus(write_lines, LINES, "bde132985f59cda6", EDITED, keep_documents=True),
    "lines, edited in small units": Corpus(
        write_lines, replace(LINES, unit_bytes=SMALL_UNITS), "2074646136d22133", EDITED, keep_documents=True
    ),
    "lines, no near duplicates": Corpus(write_lines, LINES, "e35f018663a96d18", Cleaning(parse_rules(["near_duplicates"]))),
    "compressed lines": Corpus(write_compressed_lines, C4, "6a8b6a40641bf5b8"),
    "compressed lines, no near duplicates": Corpus(
        write_compressed_lines, C4, "6ac1673a72950f0d", Cleaning(parse_rules(["near_duplicates"]))
    ),
    "Parquet": Corpus(write_table, Source("parquet", ("rows.parquet",)), "731ef27688fff728"),
    "text files": Corpus(write_text_files, Source("text", ("files",), unit_bytes=SMALL_UNITS), "70c01d84efa5ca65"),
    "comma-separated": Corpus(write_comma_separated, Source("csv", ("rows.csv",)), "73dad8752ba831cb"),
    "samples": Corpus(write_samples, Source("webdataset", ("samples.tar",)), "d5d5606b9a6ce003"),
}


def digest_of(folder: Path) -> str:
    """Return a digest of shards, rows of document tables, kept documents, and counts, with paths as relative ones."""
    index = load_index(folder)
    shards = {split: [shard.sha256 for shard in entry.shards] for split, entry in index.splits.items()}
    rows = {}
    for split, tables in index.document_tables.items():
        rows[split] = [parquet.read_table(folder / table.file).to_pylist() for table in tables]
    documents = []
    for entry in index.document_files:
        documents.append([record.value for record in read_records(str(folder / entry.file), 2**20, RecordCounts())])
    content = [shards, rows, documents, {name: vars(counts) for name, counts in index.ledger.items()}]
    text = json.dumps(content).replace(f"{Path.cwd()}/", "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("is_small_batch", [False, True], ids=["large batches", "small batches"])
@pytest.mark.parametrize("name", CORPORA)
def test_corpora_stay_as_they_are(name: str, is_small_batch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locations are relative to the working directory, so that the digest depends on the content alone."""
    monkeypatch.chdir(tmp_path)
    corpus = CORPORA[name]
    corpus.write()
    source = corpus.source
    if source.kind == "parquet":
        # The process that reads these files may have been started in another directory.
        source = replace(source, inputs=tuple(map(os.path.abspath, source.inputs)))
    options = PreparationOptions(
        source, SHARE, character_tokenizer(ALPHABET), 0, corpus.cleaning, keep_documents=corpus.keep_documents
    )
    if is_small_batch:
        options = replace(options, batch_characters=1000)
    prepare(options, Path("out"))
    assert digest_of(Path("out")) == corpus.digest
