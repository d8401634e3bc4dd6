"""Corrupted and malicious files of every kind: named, and never larger in memory than a record may be."""

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

from tests.helpers.data.sources import json_lines, read, special, tar_of
from tests.helpers.processes.load import scaled


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt"])
def test_long_records_are_skipped_in_little_memory(tmp_path: Path, name: str) -> None:
    """A line of 64 MiB between two documents; and such a text file."""
    limit = 2**16
    part = b"x" * 2**23
    path = tmp_path / name
    with path.open("wb") as file:
        if name == "a.txt":
            file.truncate(2**26)
            (tmp_path / "b.txt").write_bytes(b"y" * limit)
        else:
            long = [b'{"text": "', *[part] * 8, b'"}\n']
            exact = b'{"text": "' + b"y" * (limit - 12) + b'"}\n'
            content = [json_lines("first"), *long, exact]
            packed = {chunk: gzip.compress(chunk) if name.endswith("gz") else chunk for chunk in set(content)}
            file.writelines(packed[chunk] for chunk in content)
    tracemalloc.start()
    texts, counts = read("text" if name == "a.txt" else "jsonl", tmp_path, max_record_bytes=limit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert texts == (["y" * limit] if name == "a.txt" else ["first", "y" * (limit - 12)])
    assert (counts.too_long, counts.bad) == (1, 0)
    assert counts.first_too_long == (str(path) if name == "a.txt" else f"{path}:2")
    assert peak < 2**24, f"{peak:,} bytes at the same time"


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: blob[:-9],
        lambda blob: blob[:200] + b"\0" * 40 + blob[240:],
        lambda blob: b"",
        lambda blob: blob[:1],
        lambda blob: blob + blob[:3],
        lambda blob: bytes(99),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "tar"])
def test_packed_files_that_are_corrupted(
    tmp_path: Path, pack: Callable[[bytes], bytes], damage: Callable[[bytes], bytes], kind: str
) -> None:
    """Not one of their documents is silently missing."""
    lines = b"".join(json.dumps({"text": f"{number * 7919 % 1009}"}).encode() + b"\n" for number in range(2000))
    extensions = {gzip.compress: "gz", zstd.compress: "zst", bz2.compress: "bz2", lzma.compress: "xz"}
    name = f"a.{kind}.{extensions[pack]}"
    (tmp_path / name).write_bytes(damage(pack(lines if kind == "jsonl" else tar_of(("0.txt", lines)))))
    with pytest.raises(ValueError, match=rf"{name}: corrupted or truncated .* file \(.*again"):
        read("jsonl" if kind == "jsonl" else "webdataset", tmp_path)


GIGABYTE = 2**30


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
    """A gigabyte on one line, plain and packed into a megabyte or less, in tars and in text files, with 256 MiB to spare."""
    end = b"\n"
    line = b'{"text": "good"}\n'
    header = special("bomb.txt", size=GIGABYTE)
    good = tar_of(("good.txt", b"good"))
    for suffix, pack in {"gz": gzip.compress, "zst": zstd.compress}.items():
        zeros = pack(bytes(GIGABYTE // 64)) * 64
        (tmp_path / f"a.jsonl.{suffix}").write_bytes(pack(line) + zeros + pack(end + line))
        (tmp_path / f"a.tar.{suffix}").write_bytes(pack(header) + zeros + pack(good))
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.write(line)
        file.seek(GIGABYTE)
        file.write(end + line)
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(GIGABYTE)
    (tmp_path / "b.txt").write_text("good")
    names = {
        "a.jsonl": "jsonl",
        "a.jsonl.gz": "jsonl",
        "a.jsonl.zst": "jsonl",
        "a.tar.gz": "webdataset",
        "a.tar.zst": "webdataset",
    }
    words = [*(f"{kind}={tmp_path / name}" for name, kind in names.items()), f"text={tmp_path}"]
    run = subprocess.run(
        [sys.executable, "-c", READ_IN_LITTLE_MEMORY, *words], capture_output=True, text=True, timeout=scaled(100)
    )
    assert run.stdout.splitlines() == ["['good', 'good'] 1 0"] * 3 + ["['good'] 1 0"] * 3, run.stderr
