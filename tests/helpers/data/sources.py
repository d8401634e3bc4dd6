"""Write JSON lines, Parquet files and tars, and read them as sources."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source


def read(kind: str, *inputs: Path, **options: Any) -> tuple[list[str], CorpusCounts]:
    """Read all texts from a source of this kind, counting its documents."""
    source = Source(kind, tuple(map(str, inputs)), **options)
    counts = CorpusCounts()
    texts = [document.text for document in read_documents(source, counts)]
    return texts, counts


def text_lines(texts: list[str]) -> bytes:
    """Return texts as JSON lines."""
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def json_lines(*texts: str) -> bytes:
    """Return texts as JSON lines with the fields of C4."""
    content = b""
    for text in texts:
        record = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "u"}
        content += json.dumps(record).encode() + b"\n"
    return content


def tar_of(*members: tuple[str, bytes]) -> bytes:
    """Return a tar with these (name, content) members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def write_parquet(path: Path, texts: list[str | None], rows: int = 7, **columns: Any) -> None:
    """Write texts, their URLs and further columns as a Parquet file with `rows` rows per row group."""
    num_texts = len(texts)
    urls = [f"http://host/{number}" for number in range(num_texts)]
    table = pa.table({"text": texts, "url": urls, "n": range(num_texts)} | columns)
    parquet.write_table(table, path, row_group_size=rows)


def special(name: str, **fields: object) -> bytes:
    """Return the tar header for a member that is not a regular file."""
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.fixture
def no_hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep `datasets` offline: it reads local files like a repository on the hub."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
