"""Corrupted and malicious files of every kind are named, and never take more memory than a record may."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from megatape.data.counts import CorpusCounts
from tests.helpers.data.sources import json_lines, read, special, tar_of
from tests.helpers.processes.load import scaled

MAX_RECORD_BYTES = 2**16


def read_in_little_memory(kind: str, folder: Path) -> tuple[list[str], CorpusCounts]:
    """Read a source, and check that it takes less than 16 MiB of memory, also if it ends with an error."""
    tracemalloc.start()
    try:
        return read(kind, folder, max_record_bytes=MAX_RECORD_BYTES)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**24, f"{peak:,} bytes at the same time"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_long_records_are_skipped_in_little_memory(tmp_path: Path, name: str) -> None:
    """A line has 64 MiB. The next line is exactly as long as a record may be."""
    longest_text = "y" * (MAX_RECORD_BYTES - 12)
    chunks = [json_lines("first"), b'{"text": "', *[b"x" * 2**23] * 8, b'"}\n', f'{{"text": "{longest_text}"}}\n'.encode()]
    path = tmp_path / name
    with path.open("wb") as file:
        for chunk in chunks:
            if name.endswith(".gz"):
                chunk = gzip.compress(chunk, compresslevel=1)
            file.write(chunk)

    texts, counts = read_in_little_memory("jsonl", tmp_path)

    assert texts == ["first", longest_text]
    assert counts.too_long == 1
    assert counts.first_too_long == f"{path}:2"
    assert counts.bad == 0


@pytest.mark.parametrize("row", [b'"' + b"x,\n" * 2**24, b"x" * 2**26], ids=["a quoted value of lines", "a line"])
def test_a_row_without_end_takes_little_memory(tmp_path: Path, row: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(b"text\nfirst\n" + row)

    with pytest.raises(ValueError, match="a.csv:row 2: it does not end"):
        read_in_little_memory("csv", tmp_path)


def test_long_text_files_are_skipped_in_little_memory(tmp_path: Path) -> None:
    """A file has 64 MiB. The next file is exactly as long as a record may be."""
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(2**26)
    (tmp_path / "b.txt").write_bytes(b"y" * MAX_RECORD_BYTES)

    texts, counts = read_in_little_memory("text", tmp_path)

    assert texts == ["y" * MAX_RECORD_BYTES]
    assert counts.too_long == 1
    assert counts.first_too_long == str(tmp_path / "a.txt")
    assert counts.bad == 0


EXTENSIONS = {gzip.compress: "gz", zstd.compress: "zst", bz2.compress: "bz2", lzma.compress: "xz"}


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-9],
        lambda content: content[:200] + b"\0" * 40 + content[240:],
        lambda content: b"",
        lambda content: content[:1],
        lambda content: content + content[:3],
        lambda content: bytes(99),
    ],
    ids=["truncated", "zeros inside", "empty", "one byte", "start of another stream", "only zeros"],
)
@pytest.mark.parametrize("kind", ["jsonl", "tar", "csv"])
def test_packed_files_that_are_corrupted(
    tmp_path: Path, pack: Callable[[bytes], bytes], damage: Callable[[bytes], bytes], kind: str
) -> None:
    """A corrupted file is an error, so that none of its documents is silently missing."""
    records = [{"text": f"{number * 7919 % 1009}"} for number in range(2000)]
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    source_kind = "jsonl"
    if kind == "tar":
        content = tar_of(("0.txt", content))
        source_kind = "webdataset"
    if kind == "csv":
        content = b"text\n" + content.replace(b'"', b"")
        source_kind = "csv"
    name = f"a.{kind}.{EXTENSIONS[pack]}"
    (tmp_path / name).write_bytes(damage(pack(content)))

    with pytest.raises(ValueError, match=rf"{name}: corrupted or truncated .* file \(.*again"):
        read(source_kind, tmp_path)


GIGABYTE = 2**30
# Program reading sources, given as KIND=PATH, with 256 MiB more memory than after importing everything
READ_IN_LITTLE_MEMORY = f"""
import resource, sys
import megatape.data.sources.json_lines, megatape.data.sources.tars, megatape.data.sources.text_files
from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source

size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {2**28}, -1))
for argument in sys.argv[1:]:
    kind, _, path = argument.partition("=")
    counts = CorpusCounts()
    source = Source(kind, (path,), max_skipped_fraction=1)
    print([document.text for document in read_documents(source, counts)], counts.too_long, counts.bad)
"""


@pytest.mark.slow
def test_bombs_do_not_fill_the_memory(tmp_path: Path) -> None:
    """A record of a gigabyte in lines, tars and text files, compressed into a megabyte or less, with 256 MiB to spare."""
    write_bombs(tmp_path)
    words = [
        f"jsonl={tmp_path}/a.jsonl",
        f"jsonl={tmp_path}/a.jsonl.gz",
        f"jsonl={tmp_path}/a.jsonl.zst",
        f"webdataset={tmp_path}/a.tar.gz",
        f"webdataset={tmp_path}/a.tar.zst",
        f"text={tmp_path}",
    ]

    run = subprocess.run(
        [sys.executable, "-c", READ_IN_LITTLE_MEMORY, *words], capture_output=True, text=True, timeout=scaled(100)
    )

    assert run.stdout.splitlines() == ["['good', 'good'] 1 0"] * 3 + ["['good'] 1 0"] * 3, run.stderr


def write_bombs(folder: Path) -> None:
    """Write files with a record of a gigabyte among good ones."""
    line = b'{"text": "good"}\n'
    header = special("bomb.txt", size=GIGABYTE)
    good = tar_of(("good.txt", b"good"))
    for suffix, pack in {"gz": gzip.compress, "zst": zstd.compress}.items():
        zeros = pack(bytes(GIGABYTE // 64)) * 64
        (folder / f"a.jsonl.{suffix}").write_bytes(pack(line) + zeros + pack(b"\n" + line))
        (folder / f"a.tar.{suffix}").write_bytes(pack(header) + zeros + pack(good))
    with (folder / "a.jsonl").open("wb") as file:
        file.write(line)
        file.seek(GIGABYTE)
        file.write(b"\n" + line)
    with (folder / "a.txt").open("wb") as file:
        file.truncate(GIGABYTE)
    (folder / "b.txt").write_text("good")
