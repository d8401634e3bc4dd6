"""Lines of JSON, plain and compressed, as C4 and of any other name."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd

from megatape.errors import UserError
from tests.helpers.data.sources import json_lines, read, tar_of


def test_c4_directory_gives_its_training_documents_in_order(c4: Path) -> None:
    texts, counts = read("c4", c4)
    assert texts == ["one", "two\nlines", "three ✓"]
    assert (counts.total.num_kept, counts.total.dropped) == (3, {})


def test_c4_single_file(c4: Path) -> None:
    assert read("c4", c4 / "c4-train.00001-of-00002.json.gz")[0] == ["three ✓"]


def test_jsonl_plain_and_compressed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines("plain"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json_lines("compressed")))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(json_lines("as C4")))
    (tmp_path / "d.JSONL").write_bytes(json_lines("in capitals"))
    (tmp_path / "e.jsonl.bz2").write_bytes(bz2.compress(json_lines("bzip2")))
    (tmp_path / "f.ndjson.XZ").write_bytes(lzma.compress(json_lines("xz")))
    (tmp_path / "g.json").write_bytes(json_lines("of any name"))
    found = ["plain", "compressed", "as C4", "in capitals", "bzip2", "xz"]
    with pytest.raises(UserError, match=f"^input {tmp_path}: 1 of 7 files .* would be skipped, .*: g.json. Rename them or"):
        read("jsonl", tmp_path)
    assert read("jsonl", tmp_path, max_skipped_fraction=0.2)[0] == found
    assert read("jsonl", tmp_path / "g.json")[0] == ["of any name"]


def test_bad_records_are_counted_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        json_lines("good")
        + b'{"text": "cut\n'
        + b'{"url": "u"}\n'
        + b'{"text": 3}\n'
        + b'"text"\n'
        + b'{"text": "\xff"}\n\n'
        + b'{"text": "\\ud800"}\n'
        + b'{"text": '
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}\n"
        + json_lines("", " \n\t", "also good")
    )
    texts, counts = read("jsonl", path)
    assert texts == ["good", "also good"]
    assert counts.total.dropped == {"empty documents": 2, "bad records": 7}
    assert [example.split(": ")[0] for example in counts.bad_examples] == [f"{path}:{line}" for line in range(2, 7)]
    assert "malformed JSON" in counts.bad_examples[0] and "`text` is missing" in counts.bad_examples[1]


def test_numbers_that_nobody_reads_cost_no_text(tmp_path: Path) -> None:
    """Python and JavaScript write NaN, infinities and huge integers, which orjson rejects. A null text is empty."""
    numbers = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 500, "-" + "9" * 5000, "[NaN]")
    lines = [f'{{"text": "{number}", "score": {value}}}' for number, value in enumerate(numbers)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"text": null}', '{"text": "\\ud800", "score": NaN}']))
    texts, counts = read("jsonl", tmp_path)
    assert texts == [str(number) for number in range(len(numbers))]
    assert counts.total.dropped == {"empty documents": 1, "bad records": 1}
    (tmp_path / "a.tar").write_bytes(tar_of(("a.json", lines[0].encode())))
    assert read("webdataset", tmp_path / "a.tar")[0] == ["0"]


@pytest.mark.parametrize("damage", [lambda blob: blob[:-30], lambda blob: blob[:100] + b"\0" * 40 + blob[140:]])
def test_damaged_gzip_names_the_file(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "c4-train.00000-of-00001.json.gz"
    path.write_bytes(damage(gzip.compress(json_lines(*map(str, range(500))))))
    with pytest.raises(ValueError, match=f"{path.name}: corrupted or truncated gzip file .* again"):
        read("c4", tmp_path)


TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]


def test_zstd(tmp_path: Path) -> None:
    lines = [json.dumps({"body": text}).encode() + b"\n" for text in TEXTS]
    frames = [zstd.compress(b"".join(lines[begin : begin + 10])) for begin in range(0, 50, 10)]  # as zstd -T writes them
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    assert read("jsonl", tmp_path, text_field="body")[0] == TEXTS


def test_files_without_checksums_are_named(tmp_path: Path) -> None:
    """A flipped bit in such a file changes the text without an error."""
    lines = json_lines("text")
    checked = zstd.compress(lines, options={zstd.CompressionParameter.checksum_flag: 1})
    files = {
        "0.jsonl.zst": checked,
        "1.jsonl.xz": lzma.compress(lines),
        "2.jsonl.gz": gzip.compress(lines),
        "3.jsonl.xz": lzma.compress(lines, check=lzma.CHECK_NONE),
        "4.jsonl.zst": zstd.compress(lines),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    counts = read("jsonl", tmp_path)[1]
    assert (counts.unverified, counts.first_unverified) == (2, f"{tmp_path}/3.jsonl.xz")


def test_a_byte_order_mark_costs_no_record(tmp_path: Path) -> None:
    """Of one file, and of several that were joined; in packed files and tars, too."""
    mark = "\ufeff".encode()
    (tmp_path / "a.jsonl").write_bytes(mark + json_lines("one", "two") + mark + json_lines("three") + mark + b"\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(mark + json_lines("four")))
    texts, counts = read("jsonl", tmp_path)
    assert texts == ["one", "two", "three", "four"] and counts.bad == 0
    (tmp_path / "c.txt").write_bytes(mark + b"five")
    (tmp_path / "d.tar").write_bytes(tar_of(("0.txt", mark + b"six"), ("1.json", mark + b'{"text": "seven"}')))
    for kind, texts in (("text", ["five"]), ("webdataset", ["six", "seven"])):
        assert read(kind, tmp_path, max_skipped_fraction=1)[0] == texts


@pytest.mark.parametrize(
    "name, pack, message",
    [
        ("a.jsonl", lzma.compress, "by xz, but its name does not end in .xz: rename it"),
        ("a.jsonl.gz", bz2.compress, "by bzip2, .* does not end in .bz2: rename it"),
        ("a.jsonl", gzip.compress, "by gzip, .* does not end in .gz: rename it"),
        ("a.jsonl.gz", zstd.compress, "by zstd, .* does not end in .zst: rename it"),
    ],
)
def test_files_that_are_packed_in_another_way_than_named(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], message: str
) -> None:
    """Their bytes have few lines, which were skipped as bad records beside the documents of other files."""
    (tmp_path / "0.jsonl").write_bytes(json_lines(*map(str, range(2000))))
    (tmp_path / name).write_bytes(pack(json_lines("lost")))
    with pytest.raises(UserError, match=f"{name}: it is compressed {message}"):
        read("jsonl", tmp_path / "0.jsonl", tmp_path / name)


def test_a_zstd_frame_that_needs_two_gigabytes(tmp_path: Path) -> None:
    """Its window is refused, whatever it holds."""
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 31})
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(b'{"text": "a"}\n') + packer.flush())
    with pytest.raises(UserError, match="a.jsonl.zst: its zstd frames take more than 128 MiB to unpack: pack it again without"):
        read("jsonl", tmp_path)
