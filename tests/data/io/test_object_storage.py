"""S3 as moto serves it, where moto and s3fs are installed."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.io.remote import copy_file, open_file
from megatape.data.io.remote_file import Retries
from megatape.data.sources.source import CorpusCounts, Source, read_documents

pytestmark = pytest.mark.slow
TEXTS = [f"Document {number}" for number in range(300)]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    s3fs, server = pytest.importorskip("s3fs"), pytest.importorskip("moto.server")
    service = server.ThreadedMotoServer("127.0.0.1", 0)
    service.start()
    host, port = service.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    service.stop()


def test_sources_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    """Found in its folders, read, copied, and refused when an object changes while it is read."""
    import fsspec

    storage = fsspec.filesystem("s3")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    storage.pipe_file("bucket/lines/a/0.jsonl", lines)
    storage.pipe_file("bucket/lines/1.jsonl", lines)
    parquet.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet", row_group_size=50)
    storage.put_file(tmp_path / "a.parquet", "bucket/rows/a.parquet")
    for kind, folder, texts in (("jsonl", "lines", TEXTS * 2), ("parquet", "rows", TEXTS)):
        found = list(read_documents(Source(kind, (f"{bucket}/{folder}",)), CorpusCounts()))
        assert [document.text for document in found] == texts and found[0].place.startswith(f"{bucket}/{folder}/")
    copy_file(f"{bucket}/lines/1.jsonl", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == lines
    storage.pipe_file("bucket/large", b"1" * 20_000_000)
    with open_file(f"{bucket}/large", Retries(count=2, wait=0.1)) as file:
        file.read(10)
        storage.pipe_file("bucket/large", b"2" * 20_000_000)
        file.seek(15_000_000)
        with pytest.raises(OSError, match=f"{bucket}/large: has changed since it was opened"):
            file.read(10)
    with pytest.raises(FileNotFoundError, match="input s3://bucket/none: no such file or directory"):
        next(read_documents(Source("jsonl", (f"{bucket}/none",)), CorpusCounts()))
