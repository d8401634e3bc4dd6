"""Corrupted and malicious input: named, counted, bounded, and never larger in memory than a record may be."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from backports import zstd
from pyarrow import parquet

from megatape.data.finetuning.format import Limits
from megatape.data.finetuning.prepare import ExampleSource
from megatape.data.io.remote import FileState
from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.sources.source import CorpusCounts, Source, read_documents
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError
from tests.data.test_corpus import read
from tests.data.test_kinds import tar_of, write_parquet


def special(name: str, **fields: object) -> bytes:
    """The header of a member that is no file."""
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT)


def test_members_that_are_not_trusted(tmp_path: Path) -> None:
    """Links, devices, names that lead elsewhere and second members are named and counted; the others are read."""
    (tmp_path / "secret").write_text("secret")
    hostile = {
        special("0.txt", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret")): "0.txt: it is a link, no file",
        special("1.txt", type=tarfile.LNKTYPE, linkname="good.txt"): "1.txt: it is a link, no file",
        special("2.txt", type=tarfile.CHRTYPE): "2.txt: it is a device, no file",
        special("../3.txt"): "../3.txt: its name leads out of the archive",
        special("/4.txt"): "/4.txt: its name leads out of the archive",
    }
    content = (
        tar_of(("good.txt", b"good"))[:1024] + b"".join(hostile) + tar_of(("\x1b[2J.txt", b"odd"), ("good.txt", b"second"))
    )
    (tmp_path / "a.tar").write_bytes(content)
    texts, counts = read("webdataset", tmp_path / "a.tar")
    assert texts == ["good", "odd"] and counts.bad == 6
    assert counts.bad_examples == [f"{tmp_path}/a.tar:{reason}" for reason in hostile.values()]
    (tmp_path / "a.tar").write_bytes(tar_of(("a.json", b"{"), ("b.txt", b"\xff"), ("c.json", b"[]"), ("d.txt", b"d")))
    texts, counts = read("webdataset", tmp_path / "a.tar")
    assert texts == ["d"] and [example.partition("a.tar:")[2][:13] for example in counts.bad_examples] == [
        "a.json: malfo",
        "b.txt: malfor",
        "c.json: `text",
    ]


def test_a_member_whose_name_is_not_utf8(tmp_path: Path) -> None:
    """It is read and named like any other."""
    with tarfile.open(tmp_path / "a.tar", "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as archive:
        for name, content in {"ä.json": b'{"text": "one"}', "ö.json": b"{"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    counts = CorpusCounts()
    documents = list(read_documents(Source("webdataset", (str(tmp_path),)), counts))
    assert [(document.text, document.place) for document in documents] == [("one", f"{tmp_path}/a.tar:\\udce4.json")]
    assert counts.bad == 1 and counts.bad_examples[0].startswith(f"{tmp_path}/a.tar:\\udcf6.json: malformed")


def sized(content: bytes, size: bytes) -> bytes:
    """The size of the first member is another one, by a header with a right checksum."""
    header = bytearray(content[:512])
    header[124:136] = size
    header[148:156] = f"{sum(header[:148]) + 256 + sum(header[156:]):06o}\0 ".encode()
    return bytes(header) + content[512:]


TAR = tar_of(("0.txt", b"0" * 600), ("1.txt", b"1"))


@pytest.mark.parametrize(
    "content, reason",
    [
        (TAR[:1024], "truncated"),  # inside a member
        (TAR[:1536], "truncated"),  # between two members
        (TAR[:2560], "truncated"),  # without an end
        (TAR[:100] + b"x" + TAR[101:], "the checksum of a header is wrong"),
        (sized(TAR, b"\xff" * 10 + b"\xfe\x00"), "a header has a negative number"),
        (sized(TAR, b"\x80\0\0\0\x80" + bytes(7)), "a member of 9,223,372,036,854,775,808 bytes"),
        (sized(TAR, b"\x80" + b"\xff" * 11), "a member of 309,485,009,821,345,068,724,781,055 bytes"),
        (
            special("x", type=tarfile.XHDTYPE, size=29) + b"29 size=99999999999999999999\n".ljust(512, b"\0") + TAR,
            "a member of",
        ),
        (TAR + TAR, "there is more after its end"),
        (special("x", type=tarfile.XHDTYPE, size=2**40) + TAR, "extended headers of more than 65,536 bytes"),
        (special("x", type=tarfile.GNUTYPE_LONGNAME, size=2**30) + TAR, "extended headers of more than"),
        (b"".join([special("x", type=tarfile.GNUTYPE_LONGNAME)] * 9) + TAR, "extended headers of more than"),
        (special("x", type=tarfile.XHDTYPE, size=9) + b"99 path=x".ljust(512, b"\0") + TAR, "an extended header is malformed"),
        (special("x", type=tarfile.XHDTYPE, size=14) + b"14 size=-5120\n".ljust(512, b"\0") + TAR, "in place of a size"),
        (b"{}\n" * 1000, "in place of a number|checksum of a header is wrong"),
    ],
)
def test_tars_that_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a.tar: corrupted or truncated tar file \(.*({reason})"):
        read("webdataset", tmp_path)


def test_links_in_a_folder_are_not_followed(tmp_path: Path) -> None:
    """They lead anywhere: they are named and counted as members of tars are. A link that is given itself is a file."""
    folder, secret, link = tmp_path / "texts", tmp_path / "secrets" / "secret.txt", tmp_path / "link.txt"
    for path, content in {folder / "a.txt": "good", secret: "secret"}.items():
        path.parent.mkdir()
        path.write_text(content)
    (folder / "b.txt").symlink_to(secret)
    (folder / "c").symlink_to(secret.parent)
    texts, counts = read("text", folder)
    assert texts == ["good"] and counts.bad_examples == [f"{folder}/b.txt: it is a link, no file"]
    (folder / "b.txt").rename(folder / "b.py")
    (folder / "a.txt").rename(folder / "a.py")
    assert read("code", folder)[0] == ["good"]
    link.symlink_to(folder / "a.py")
    assert read("text", link)[0] == ["good"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
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
    name = f"a.{kind}.{'gz' if pack is gzip.compress else 'zst'}"
    (tmp_path / name).write_bytes(damage(pack(lines if kind == "jsonl" else tar_of(("0.txt", lines)))))
    with pytest.raises(ValueError, match=rf"{name}: corrupted or truncated .* file \(.*again"):
        read("jsonl" if kind == "jsonl" else "webdataset", tmp_path)


def test_a_zstd_frame_that_needs_two_gigabytes(tmp_path: Path) -> None:
    """Its window is refused, whatever it holds."""
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 31})
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(b'{"text": "a"}\n') + packer.flush())
    with pytest.raises(UserError, match="a.jsonl.zst: its zstd frames take more than 128 MiB to unpack: pack it again without"):
        read("jsonl", tmp_path)


@pytest.mark.parametrize("size", [0, 2**31, 10**30])
def test_a_limit_on_records_that_is_none(size: int) -> None:
    message = rf"max_record_bytes is {size}: give a number between 1 and 2,147,483,647"
    with pytest.raises(UserError, match=message):
        Source("python", max_record_bytes=size)
    with pytest.raises(UserError, match=message):
        ExampleSource("pairs", ("a.jsonl",), (), Limits(100), max_record_bytes=size)


def test_names_that_cannot_be_shown(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """They are escaped where they are stored and printed."""
    folder = tmp_path / "code"
    folder.mkdir()
    for name in (b"\xff.py", b"a\nb.py", b"\x1b[2J.py"):
        (folder / os.fsdecode(name)).write_text(f"text of {name!r}")
    (folder / "c\n.py").write_bytes(b"\xff")
    for number in range(9):
        (folder / f"{number}.py").write_text(f"text {number}")
    index, counts = prepare(Corpus(Source("code", (str(folder),)), 0.5, tokenizer, 0), tmp_path / "out")
    assert counts is not None and counts.bad_examples == [f"{folder}/c\\n.py: invalid UTF-8 (invalid start byte at byte 0)"]
    tables = [table.file for tables in index.document_tables.values() for table in tables]
    places = {place for file in tables for place in parquet.read_table(tmp_path / "out" / file)["place"].to_pylist()}
    assert places > {f"{folder}/{name}.py" for name in ("\\udcff", "a\\nb", "\\x1b[2J")}


def test_parquet_files_with_faults(tmp_path: Path) -> None:
    """Rows without text, or not in UTF-8, and files of another schema are counted; corrupted ones are refused."""
    path = tmp_path / "a.parquet"
    write_parquet(path, ["zero", None, "", "three" * 100])
    texts, counts = read("parquet", path, max_record_bytes=400)
    assert texts == ["zero"] and (counts.bad, counts.total.dropped["empty documents"], counts.first_too_long) == (
        1,
        1,
        f"{path}:row 3",
    )
    assert counts.bad_examples == [f"{path}:row 1: `text` is missing"]
    write_parquet(path, ["x"] * 2, body=pa.array([b"one", b"\xff"]), labels=pa.array([1, 2]))
    texts, counts = read("parquet", path, text_field="body")
    assert texts == ["one"] and counts.bad_examples == [f"{path}:row 1: invalid UTF-8 (invalid start byte at byte 0)"]
    for field in ("labels", "none"):
        with pytest.raises(ValueError, match=rf"2 bad, first: {path}:row 0: the file has no column `{field}` of text"):
            read("parquet", path, text_field=field)
    parquet.write_table(pa.table({"text": [f"{number:0100}" for number in range(999)]}), path, write_page_checksum=True)
    good = path.read_bytes()
    for content in (good[:-50], good[:2000] + b"\xff" + good[2001:], b"PAR1" + good[: len(good) // 2], b"{}\n" * 99):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a.parquet: corrupted Parquet file \(.*again"):
            read("parquet", path)


def test_a_parquet_file_that_ends_its_process(tmp_path: Path) -> None:
    """pyarrow aborts where a footer contradicts itself: the file is named, and others are read as before and after."""
    good, bad = tmp_path / "0.parquet", tmp_path / "1.parquet"
    write_parquet(good, ["good"])
    parquet.write_table(pa.table({"text": ["bad"]}), bad)
    content = bad.read_bytes()
    assert content.count(OPTIONAL) == 1
    bad.write_bytes(content.replace(OPTIONAL, REQUIRED))
    for _ in range(2):
        assert read("parquet", good)[0] == ["good"]
        with pytest.raises(UserError, match=f"{bad}: cannot be read: the process that did was ended by SIGABRT: a file is"):
            read("parquet", tmp_path)


def test_documents_that_are_not_wanted_end_their_process(tmp_path: Path) -> None:
    """A source that is left before its end leaves no process that waits to send the rest."""
    write_parquet(tmp_path / "a.parquet", ["x" * 100_000] * 100)
    before = psutil.Process().children(recursive=True)
    assert read("parquet", tmp_path, max_documents=1)[0] == ["x" * 100_000]
    assert all(child in before for child in psutil.Process().children(recursive=True))


def test_too_many_bad_records_of_all_units(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no unit has too many of may be too much in all: nothing that is finished is lost, and nothing is read again."""
    monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", 2000)
    for number in range(3):
        lines = [json.dumps({"text": f"Document {100 * number + line}"}) for line in range(90)]
        lines[8:40:4] = ["{"] * 8
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    source = Source("jsonl", (str(tmp_path),))
    corpus = Corpus(source, 0.2, tokenizer, 0)
    with pytest.raises(ValueError, match=rf"of 270 records 24 are bad .*; the first: {tmp_path}/0.jsonl:9: malformed JSON"):
        prepare(corpus, tmp_path / "out")
    units = sorted((tmp_path / "out.partial" / "units").iterdir())
    assert len(units) == len(source.units()) > 3
    monkeypatch.setattr("megatape.data.prepare.unit.read_unit", None)
    index, _ = prepare(Corpus(Source("jsonl", (str(tmp_path),), max_bad_fraction=0.1), 0.2, tokenizer, 0), tmp_path / "out")
    assert index.counts == {"bad records": 24}


def test_a_length_that_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server announces does not decide how much memory the list of units takes."""
    state = FileState(10**14, "")
    monkeypatch.setattr("megatape.data.sources.units.file_states", lambda names: [state for _ in names])
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(
        UserError, match=r"a.jsonl: with its 100,000,000,000,000 bytes the source has more than 1,048,576 units"
    ):
        Source("jsonl", (str(tmp_path),)).units()


# Beginnings of the description of a column in a footer of Parquet, whose page statistics are for the former.
OPTIONAL, REQUIRED = b"%\x02\x18\x04text", b"%\x00\x18\x04text"
GIGABYTE = 2**30
READ_IN_LITTLE_MEMORY = f"""
import resource, sys
import megatape.data.sources.json_lines, megatape.data.sources.tars, megatape.data.sources.text_files
from megatape.data.sources.source import CorpusCounts, Source, read_documents

size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {2**28}, -1))
for argument in sys.argv[1:]:
    kind, _, path = argument.partition("=")
    counts = CorpusCounts()
    print([document.text for document in read_documents(Source(kind, (path,)), counts)], counts.too_long, counts.bad)
"""


@pytest.mark.slow
def test_bombs_do_not_fill_the_memory(tmp_path: Path) -> None:
    """A gigabyte on one line, plain and packed into a megabyte or less, in tars and in text files, with 256 MiB to spare."""
    end, line = b"\n", b'{"text": "good"}\n'
    header, good = special("bomb.txt", size=GIGABYTE), tar_of(("good.txt", b"good"))
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
    run = subprocess.run([sys.executable, "-c", READ_IN_LITTLE_MEMORY, *words], capture_output=True, text=True, timeout=100)
    assert run.stdout.splitlines() == ["['good', 'good'] 1 0"] * 3 + ["['good'] 1 0"] * 3, run.stderr
