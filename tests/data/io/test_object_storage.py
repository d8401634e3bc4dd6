"""S3, served by moto on this machine, with faults and without credentials. Needs moto and s3fs."""

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
from tests.helpers.data.sources import text_lines
from tests.helpers.processes.command import Command

TEXTS = [f"Document {number}" for number in range(300)]
QUICK = Retries(count=2, wait=0.01)
# Status and code in the server's next answers
FAULTS: list[tuple[str, str]] = []


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Start an S3 server with a bucket. It gives the answers in FAULTS first."""
    s3fs = pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    serving = pytest.importorskip("werkzeug.serving")
    storage = moto.DomainDispatcherApplication(moto.create_backend_app)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not FAULTS:
            return storage(environ, start)
        status, code = FAULTS.pop(0)
        start(status, [("Content-Type", "application/xml")])
        body = f"<Error><Code>{code}</Code><Message>{code}!</Message></Error>".encode()
        if environ["REQUEST_METHOD"] == "HEAD":
            return []
        return [body]

    server = serving.make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    environment = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        # The client's own attempts take seconds. Ours count.
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # Remove what earlier servers in this process have stored.
    urllib.request.urlopen(f"{address}/moto-api/reset", data=b"")
    monkeypatch.setattr(retries, "RETRIES", QUICK)
    # botocore's attempts would hide ours.
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"max_attempts": 0}}})
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket"
    FAULTS.clear()
    s3fs.S3FileSystem.clear_instance_cache()
    server.shutdown()
    thread.join()
    server.server_close()


LARGE_BYTES = 20_000_000
INTERNAL_ERROR = ("500 Error", "InternalError")
UNAVAILABLE = ("503 Busy", "ServiceUnavailable")


@pytest.fixture
def large(bucket: str) -> str:
    """Return the URL of a large object filled with ones."""
    fsspec.filesystem("s3").pipe_file("bucket/large", b"1" * LARGE_BYTES)
    return f"{bucket}/large"


def test_passing_faults_are_tried_again(large: str, caplog: pytest.LogCaptureFixture) -> None:
    """While finding and while reading a file."""
    FAULTS[:] = [INTERNAL_ERROR, UNAVAILABLE]
    assert find_files([large]) == [large]

    with open_file(large) as file:
        FAULTS[:] = [INTERNAL_ERROR, UNAVAILABLE]
        assert file.read() == b"1" * LARGE_BYTES

    assert FAULTS == []
    assert sum("trying again" in message for message in caplog.messages) == 4


def test_one_fault_too_many_is_an_error(large: str) -> None:
    with open_file(large) as file:
        FAULTS[:] = [INTERNAL_ERROR] * 3
        with pytest.raises(PathError, match=r"large: OSError: .* Server Error at byte 0 of 20,000,000, after 3 attempts"):
            file.read()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("403 AccessDenied", "AccessDenied", "access denied .*: set AWS_ACCESS_KEY_ID"),
        ("403 SignatureDoesNotMatch", "SignatureDoesNotMatch", "access denied .*: set AWS_ACCESS_KEY_ID"),
        ("400 Malformed", "Malformed", ""),
    ],
)
def test_lasting_errors_are_not_tried_again(
    bucket: str, status: str, code: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    FAULTS[:] = [(status, code)] * 9

    with pytest.raises(PathError, match=f"^s3://bucket/x: {message}"):
        open_file(f"{bucket}/x")

    assert [line for line in caplog.messages if "trying again" in line] == []


def clear_clients() -> None:
    """Let s3fs read its settings again."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def test_missing_credentials_are_an_error_with_a_remedy(bucket: str, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """A command prints one line. With the remedy, a public bucket needs no credentials."""
    fsspec.filesystem("s3").pipe_file("bucket/a.jsonl", text_lines(TEXTS), ACL="public-read")
    words = ["prepare", "corpus", "--source", "jsonl", "--input", f"{bucket}/", "--dry-run"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    clear_clients()

    status, _, errors = command(*words)
    assert status == 2
    assert errors.startswith("error: s3://bucket/: access denied (NoCredentialsError: Unable to locate credent")
    assert "FSSPEC_S3_ANON=true" in errors
    assert errors.count("\n") == 1

    # The variable FSSPEC_S3_ANON does this when fsspec is imported.
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": "true"})
    clear_clients()
    status, printed, errors = command(*words)
    assert status == 0, errors
    assert "of the first 300 documents 300 stay" in printed


def test_a_missing_server_is_an_error_with_a_remedy(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": "true"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    clear_clients()

    with pytest.raises(PathError, match="x: EndpointConnectionError: Could not connect .*, after 3 attempts: check the netw"):
        open_file(f"{bucket}/x")


def test_lines_in_folders_of_a_bucket_are_read(bucket: str) -> None:
    storage = fsspec.filesystem("s3")
    storage.pipe_file("bucket/lines/a/0.jsonl", text_lines(TEXTS))
    storage.pipe_file("bucket/lines/1.jsonl", text_lines(TEXTS))

    documents = list(read_documents(Source("jsonl", (f"{bucket}/lines",)), CorpusCounts()))

    assert [document.text for document in documents] == TEXTS * 2
    assert documents[0].location.startswith(f"{bucket}/lines/")


def test_parquet_files_in_a_bucket_are_read(bucket: str, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": TEXTS}), tmp_path / "a.parquet", row_group_size=50)
    fsspec.filesystem("s3").put_file(tmp_path / "a.parquet", "bucket/rows/a.parquet")

    documents = list(read_documents(Source("parquet", (f"{bucket}/rows",)), CorpusCounts()))

    assert [document.text for document in documents] == TEXTS
    assert documents[0].location.startswith(f"{bucket}/rows/")


def test_an_object_is_copied(bucket: str, tmp_path: Path) -> None:
    fsspec.filesystem("s3").pipe_file("bucket/a.jsonl", text_lines(TEXTS))

    copy_file(f"{bucket}/a.jsonl", tmp_path / "copy")

    assert (tmp_path / "copy").read_bytes() == text_lines(TEXTS)


def test_an_object_that_changes_while_being_read_is_refused(large: str) -> None:
    with open_file(large) as file:
        file.read(10)
        fsspec.filesystem("s3").pipe_file("bucket/large", b"2" * LARGE_BYTES)
        file.seek(15_000_000)
        with pytest.raises(OSError, match=f"{large}: has changed since it was opened"):
            file.read(10)


def test_a_missing_object_is_named(bucket: str) -> None:
    with pytest.raises(FileNotFoundError, match="input s3://bucket/none: no such file or directory"):
        next(read_documents(Source("jsonl", (f"{bucket}/none",)), CorpusCounts()))
