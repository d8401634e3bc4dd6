"""S3 as moto serves it on this machine, with faults and without credentials, where moto and s3fs are installed."""

import json
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from megatape.data.counts import CorpusCounts
from megatape.data.io import retries
from megatape.data.io.files import copy_file, open_file
from megatape.data.io.inputs import find_files
from megatape.data.io.retries import Retries
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import PathError
from tests.helpers.processes.command import Command

TEXTS = [f"Document {number}" for number in range(300)]
QUICK = Retries(count=2, wait=0.01)
FAULTS: list[tuple[str, str]] = []  # status and code of the next answers


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """An S3 server with a bucket, which gives the answers in FAULTS first."""
    s3fs, moto, serving = (pytest.importorskip(name) for name in ("s3fs", "moto.server", "werkzeug.serving"))
    storage = moto.DomainDispatcherApplication(moto.create_backend_app)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not FAULTS:
            return storage(environ, start)
        status, code = FAULTS.pop(0)
        start(status, [("Content-Type", "application/xml")])
        body = f"<Error><Code>{code}</Code><Message>{code}!</Message></Error>".encode()
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    server = serving.make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",  # of the client itself, for seconds; ours count
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/moto-api/reset", data=b"")  # the state of all servers
    monkeypatch.setattr(retries, "RETRIES", QUICK)
    once = {"config_kwargs": {"retries": {"max_attempts": 0}}}  # botocore's own attempts would hide ours
    monkeypatch.setitem(fsspec.config.conf, "s3", once)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket"
    FAULTS.clear()
    s3fs.S3FileSystem.clear_instance_cache()
    server.shutdown()
    thread.join()
    server.server_close()


def test_faults_that_pass_are_tried_again(bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    """While a file is found and while it is read; one failure too many is an error."""
    fsspec.filesystem("s3").pipe_file("bucket/large", b"1" * 20_000_000)
    FAULTS[:] = [("500 Error", "InternalError"), ("503 Busy", "ServiceUnavailable")]
    assert find_files([f"{bucket}/large"]) == [f"{bucket}/large"]
    with open_file(f"{bucket}/large") as file:
        FAULTS[:] = [("500 Error", "InternalError"), ("503 Slow", "ServiceUnavailable")]
        assert file.read() == b"1" * 20_000_000
    assert not FAULTS and sum("trying again" in line for line in caplog.messages) == 4
    with open_file(f"{bucket}/large") as file:
        FAULTS[:] = [("500 Error", "InternalError")] * 3
        with pytest.raises(PathError, match=r"large: OSError: .* Server Error at byte 0 of 20,000,000, after 3 attempts"):
            file.read()


@pytest.mark.parametrize("code", ["403 AccessDenied", "403 SignatureDoesNotMatch", "400 Malformed"])
def test_what_does_not_pass_is_told_at_once(bucket: str, code: str, caplog: pytest.LogCaptureFixture) -> None:
    FAULTS[:] = [(code, code.split()[1])] * 9
    denied = "access denied .*: set AWS_ACCESS_KEY_ID" if code.startswith("403") else ""
    with pytest.raises(PathError, match=f"^s3://bucket/x: {denied}"):
        open_file(f"{bucket}/x")
    assert not any("trying again" in line for line in caplog.messages)


def test_without_credentials_or_network(bucket: str, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """One line with a remedy, as a command shows it; a public bucket needs no credentials."""
    import s3fs

    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    fsspec.filesystem("s3").pipe_file("bucket/a.jsonl", lines.encode(), ACL="public-read")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    s3fs.S3FileSystem.clear_instance_cache()
    words = ["prepare", "corpus", "--source", "jsonl", "--input", f"{bucket}/", "--dry-run"]
    status, output, errors = command(*words)
    assert status == 2 and errors.startswith("error: s3://bucket/: access denied (NoCredentialsError: Unable to locate credent")
    assert "FSSPEC_S3_ANON=true" in errors and errors.count("\n") == 1
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": "true"})  # as that variable does when fsspec is imported
    s3fs.S3FileSystem.clear_instance_cache()
    status, output, errors = command(*words)
    assert status == 0, errors
    assert "of the first 300 documents 300 stay" in output
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(PathError, match="x: EndpointConnectionError: Could not connect .*, after 3 attempts: check the netw"):
        open_file(f"{bucket}/x")


def test_sources_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    """Found in its folders, read, copied, and refused when an object changes while it is read."""
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
    with open_file(f"{bucket}/large") as file:
        file.read(10)
        storage.pipe_file("bucket/large", b"2" * 20_000_000)
        file.seek(15_000_000)
        with pytest.raises(OSError, match=f"{bucket}/large: has changed since it was opened"):
            file.read(10)
    with pytest.raises(FileNotFoundError, match="input s3://bucket/none: no such file or directory"):
        next(read_documents(Source("jsonl", (f"{bucket}/none",)), CorpusCounts()))
