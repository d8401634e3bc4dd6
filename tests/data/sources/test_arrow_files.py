"""Arrow files and streams: columns of text, and damaged or malicious files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.data.sources import read

TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]
ROWS = 7


def arrow_bytes(is_stream: bool, packing: str | None = None, **columns: pa.Array) -> bytes:
    """Return a file or a stream of these columns, with ROWS rows in a batch."""
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression=packing)
    make_writer = ipc.new_stream if is_stream else ipc.new_file
    with make_writer(sink, table.schema, options=options) as writer:
        writer.write_table(table, ROWS)
    return sink.getvalue().to_pybytes()


def text_bytes(is_stream: bool, packing: str | None = None) -> bytes:
    return arrow_bytes(is_stream, packing, text=pa.array(TEXTS), n=pa.array(range(50)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the file that a test writes."""
    return tmp_path / "a.arrow"


@pytest.mark.parametrize("packing", [None, "lz4", "zstd"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["file", "stream"])
def test_rows_are_read_in_order(path: Path, is_stream: bool, packing: str | None) -> None:
    urls = pa.array([f"http://host/{number}" for number in range(50)])
    licenses = pa.array([{"license": f"l{number}"} for number in range(50)])
    path.write_bytes(arrow_bytes(is_stream, packing, n=pa.array(range(50)), text=pa.array(TEXTS), url=urls, meta=licenses))
    counts = CorpusCounts()

    documents = list(read_documents(Source("arrow", (str(path.parent),), fields=("meta.license",)), counts))

    assert [document.text for document in documents] == TEXTS
    assert [document.location for document in documents] == [f"{path}:row {number}" for number in range(50)]
    assert documents[9].url == "http://host/9"
    assert documents[9].fields == {"meta.license": "l9"}
    assert counts.read_bytes == path.stat().st_size


@pytest.mark.parametrize("kind", [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_columns_that_hold_text(path: Path, kind: pa.DataType) -> None:
    path.write_bytes(arrow_bytes(False, body=pa.array(TEXTS).cast(kind)))

    assert read("arrow", path, text_field="body")[0] == TEXTS


def test_null_and_long_rows_are_counted(path: Path) -> None:
    path.write_bytes(arrow_bytes(True, text=pa.array(["zero", None, "", "three" * 100])))

    texts, counts = read("arrow", path, max_record_bytes=100)

    assert texts == ["zero"]
    assert counts.total.read == 4
    assert counts.too_long == 1
    assert counts.first_too_long == f"{path}:row 3"


@pytest.mark.parametrize("column", [pa.array(range(50)), pa.array([["a"]] * 50)], ids=["numbers", "lists"])
def test_a_column_of_another_type_is_refused(path: Path, column: pa.Array) -> None:
    path.write_bytes(arrow_bytes(False, text=column, body=pa.array(TEXTS)))

    with pytest.raises(UserError, match="a.arrow: the file has no column `text` of text, only text, body"):
        read("arrow", path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("is_stream", [False, True], ids=["file", "stream"])
def test_truncated_files_are_named(path: Path, is_stream: bool, share: float) -> None:
    content = text_bytes(is_stream)
    path.write_bytes(content[: int(share * len(content))])

    with pytest.raises(UserError, match="a.arrow: corrupted Arrow file"):
        read("arrow", path)


def test_a_stream_cut_between_batches_is_named(path: Path) -> None:
    """A stream cut between batches looks complete to pyarrow, so documents would be missing silently."""
    content = text_bytes(is_stream=True)
    end_of_message = content.rindex(b"\xff\xff\xff\xff", 0, len(content) - 8)
    path.write_bytes(content[:end_of_message])
    assert ipc.open_stream(path.read_bytes()).read_all().num_rows == 49

    with pytest.raises(UserError, match="a.arrow: corrupted Arrow file .it does not end"):
        read("arrow", path)


def test_a_packed_size_beyond_the_memory_is_named(path: Path) -> None:
    """The size of an unpacked buffer stands before it. A bomb would announce its true size."""
    text = "word " * 10_000
    content = arrow_bytes(False, "zstd", text=pa.array([text]))
    # The same number is also the last offset, in the buffer before.
    size_offset = content.rindex(len(text).to_bytes(8, "little"))
    path.write_bytes(content[:size_offset] + (2**40).to_bytes(8, "little") + content[size_offset + 8 :])

    with pytest.raises(UserError, match="a.arrow: a batch of rows takes more than 4.00 GiB"):
        read("arrow", path)


@pytest.mark.slow
@pytest.mark.parametrize("is_stream", [False, True], ids=["file", "stream"])
def test_changed_bytes_end_no_command(path: Path, is_stream: bool) -> None:
    """Each is an error that names the file, or leaves 50 rows, since a letter has no checksum."""
    content = text_bytes(is_stream)
    draw = np.random.default_rng(0)
    num_errors = 0
    for offset in draw.integers(0, len(content), 80).tolist():
        changed = bytearray(content)
        changed[offset] ^= int(draw.integers(1, 256))
        path.write_bytes(changed)
        try:
            texts, _ = read("arrow", path)
        except UserError as error:
            assert "a.arrow" in str(error), offset
            num_errors += 1
        else:
            assert len(texts) == 50, offset
    assert 5 < num_errors < 80
