"""Sources to read: lines of JSON, Parquet files and tars."""

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
    counts = CorpusCounts()
    return [document.text for document in read_documents(Source(kind, tuple(map(str, inputs)), **options), counts)], counts


def json_lines(*texts: str) -> bytes:
    return b"".join(
        json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "u"}).encode() + b"\n" for text in texts
    )


def tar_of(*members: tuple[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, text in members:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return content.getvalue()


def write_parquet(path: Path, texts: list[str | None], rows: int = 7, **columns: Any) -> None:
    urls = [f"http://host/{number}" for number in range(len(texts))]
    parquet.write_table(pa.table({"text": texts, "url": urls, "n": range(len(texts))} | columns), path, row_group_size=rows)


def special(name: str, **fields: object) -> bytes:
    """The header of a member that is no file."""
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.fixture
def no_hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` on local files, which it treats like a repository on the hub."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
