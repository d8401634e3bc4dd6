"""JSON lines, plain and compressed, with the names of C4 and with other names."""

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
    assert counts.total.num_kept == 3
    assert counts.total.dropped == {}


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

    message = f"^input {tmp_path}: 1 of 7 files .* would be skipped, .*: g.json. Rename them or"
    with pytest.raises(UserError, match=message):
        read("jsonl", tmp_path)

    texts, _ = read("jsonl", tmp_path, max_skipped_fraction=0.2)
    assert texts == ["plain", "compressed", "as C4", "in capitals", "bzip2", "xz"]
    assert read("jsonl", tmp_path / "g.json")[0] == ["of any name"]


def test_bad_records_are_counted_with_their_location(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    bad_records = [
        b'{"text": "cut',
        b'{"url": "u"}',
        b'{"text": 3}',
        b'"text"',
        b'{"text": "\xff"}\n',
        b'{"text": "\\ud800"}',
        b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ]
    bad_lines = b"".join(record + b"\n" for record in bad_records)
    path.write_bytes(json_lines("good") + bad_lines + json_lines("", " \n\t", "also good"))

    texts, counts = read("jsonl", path)

    assert texts == ["good", "also good"]
    assert counts.total.dropped == {"empty documents": 2, "bad records": 7}
    assert [example.split(": ")[0] for example in counts.bad_examples] == [f"{path}:{line}" for line in range(2, 7)]
    assert "malformed JSON" in counts.bad_examples[0]
    assert "`text` is missing" in counts.bad_examples[1]


# Written by Python and JavaScript, but rejected by orjson
UNUSUAL_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 500, "-" + "9" * 5000, "[NaN]")


def test_unusual_numbers_in_other_fields_cost_no_text(tmp_path: Path) -> None:
    """Unusual numbers make no other record readable: a null text is empty, and a text that is not Unicode is bad."""
    lines = [f'{{"text": "{number}", "score": {value}}}' for number, value in enumerate(UNUSUAL_NUMBERS)]
    lines += ['{"text": null}', '{"text": "\\ud800", "score": NaN}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    texts, counts = read("jsonl", tmp_path)

    assert texts == [str(number) for number in range(len(UNUSUAL_NUMBERS))]
    assert counts.total.dropped == {"empty documents": 1, "bad records": 1}


def test_unusual_numbers_in_a_tar_cost_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(("a.json", b'{"text": "0", "score": NaN}')))

    assert read("webdataset", tmp_path)[0] == ["0"]


@pytest.mark.parametrize("damage", [lambda blob: blob[:-30], lambda blob: blob[:100] + b"\0" * 40 + blob[140:]])
def test_damaged_gzip_names_the_file(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "c4-train.00000-of-00001.json.gz"
    path.write_bytes(damage(gzip.compress(json_lines(*map(str, range(500))))))
    with pytest.raises(ValueError, match=f"{path.name}: corrupted or truncated gzip file .* again"):
        read("c4", tmp_path)


TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]


def test_zstd_files_of_several_frames(tmp_path: Path) -> None:
    """`zstd -T` writes several frames."""
    lines = [json.dumps({"body": text}).encode() + b"\n" for text in TEXTS]
    frames = [zstd.compress(b"".join(lines[begin : begin + 10])) for begin in range(0, 50, 10)]

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

    _, counts = read("jsonl", tmp_path)

    assert counts.unverified == 2
    assert counts.first_unverified == f"{tmp_path}/3.jsonl.xz"


MARK = "\ufeff".encode()


def test_a_byte_order_mark_costs_no_record(tmp_path: Path) -> None:
    """A file may have several marks if it was joined from others."""
    joined = MARK + json_lines("one", "two") + MARK + json_lines("three") + MARK + b"\n"
    (tmp_path / "a.jsonl").write_bytes(joined)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(MARK + json_lines("four")))

    texts, counts = read("jsonl", tmp_path)

    assert texts == ["one", "two", "three", "four"]
    assert counts.bad == 0


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(MARK + b"one")
    (tmp_path / "b.tar").write_bytes(tar_of(("0.txt", MARK + b"two"), ("1.json", MARK + b'{"text": "three"}')))

    assert read("text", tmp_path / "a.txt")[0] == ["one"]
    assert read("webdataset", tmp_path / "b.tar")[0] == ["two", "three"]


@pytest.mark.parametrize(
    ("name", "pack", "message"),
    [
        ("a.jsonl", lzma.compress, "by xz, but its name does not end in .xz: rename it"),
        ("a.jsonl.gz", bz2.compress, "by bzip2, .* does not end in .bz2: rename it"),
        ("a.jsonl", gzip.compress, "by gzip, .* does not end in .gz: rename it"),
        ("a.jsonl.gz", zstd.compress, "by zstd, .* does not end in .zst: rename it"),
    ],
)
def test_files_compressed_in_another_way_than_named_are_refused(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], message: str
) -> None:
    """Compressed bytes have few lines, which were skipped as bad records among the documents of other files."""
    (tmp_path / "0.jsonl").write_bytes(json_lines(*map(str, range(2000))))
    (tmp_path / name).write_bytes(pack(json_lines("lost")))

    with pytest.raises(UserError, match=f"{name}: it is compressed {message}"):
        read("jsonl", tmp_path / "0.jsonl", tmp_path / name)


def test_a_zstd_frame_that_needs_two_gigabytes_is_refused(tmp_path: Path) -> None:
    """The size of its window decides, however small its content."""
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 31})
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(b'{"text": "a"}\n') + packer.flush())

    with pytest.raises(UserError, match="a.jsonl.zst: its zstd frames take more than 128 MiB to unpack: pack it again without"):
        read("jsonl", tmp_path)


def test_the_text_may_be_inside_another_field(tmp_path: Path) -> None:
    """A field whose name has a dot comes first. A null text is an empty document, a missing one a bad record."""
    records: list[dict[str, object]] = [
        {"body": {"text": "inside"}},
        {"body.text": "of this name", "body": {"text": "other"}},
        {"body": {"text": None}},
        {"body": "no object"},
        {"body": {}},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    texts, counts = read("jsonl", tmp_path, text_field="body.text", max_bad_fraction=1)

    assert texts == ["inside", "of this name"]
    assert counts.bad == 2
    assert counts.total.dropped["empty documents"] == 1
