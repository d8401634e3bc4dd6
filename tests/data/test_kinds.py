"""Parquet files, tars, code and data sets of the hub: the documents of every kind of source, by path and by URL."""

import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from backports import zstd
from pyarrow import parquet

from megatape.data.prepare.command import prepare
from megatape.data.prepare.corpus import Corpus
from megatape.data.sources.source import CorpusCounts, Source, read_documents, read_unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from tests.data.test_corpus import no_hub, read  # noqa: F401
from tests.helpers.web import Fault, served

TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]


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


def test_zstd(tmp_path: Path) -> None:
    lines = [json.dumps({"body": text}).encode() + b"\n" for text in TEXTS]
    frames = [zstd.compress(b"".join(lines[begin : begin + 10])) for begin in range(0, 50, 10)]  # as zstd -T writes them
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    assert read("jsonl", tmp_path, text_field="body")[0] == TEXTS


def test_row_groups_are_divided_among_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row once and in order, with its number in the file and its URL, whatever the size of a unit."""
    path = tmp_path / "a.parquet"
    write_parquet(path, list(TEXTS))
    for size in (2**20, 500, 100):
        monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", size)
        source, counts = Source("parquet", (str(tmp_path),)), CorpusCounts()
        units = source.units()
        assert len(units) == -(-path.stat().st_size // size)
        found = [document for unit in units for document in read_unit(source, unit, counts)]
        assert [document.text for document in found] == TEXTS
        assert [document.place for document in found] == [f"{path}:row {number}" for number in range(50)]
        assert found[9].url == "http://host/9"
        assert 0 < counts.read_bytes <= path.stat().st_size


@pytest.mark.parametrize("kind", [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_columns_that_hold_text(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(TEXTS).cast(pa.binary()) if kind == pa.binary() else pa.array(TEXTS).cast(kind)
    write_parquet(tmp_path / "a.parquet", [""] * 50, body=column)
    assert read("parquet", tmp_path, text_field="body")[0] == TEXTS


def test_samples_of_tars(tmp_path: Path) -> None:
    """Text beside its record, a record alone, and what has none, in folders with names of any length."""
    long = "folder/" * 30 + "c" * 90
    (tmp_path / "a.tar").write_bytes(
        tar_of(
            (f"{long}.txt", b"long"),
            ("b/0.jpg", b"\xff"),
            ("b/0.txt", b"zero"),
            ("b/0.json", b'{"url": "http://host/0", "text": "not this"}'),
            ("b/1.json", b'{"text": "one"}'),
            ("b/2.jpg", b"\xff"),
        )
    )
    (tmp_path / "b.tar.zst").write_bytes(zstd.compress(tar_of(("3.TXT", b"three"))))
    source = Source("webdataset", (str(tmp_path),))
    found = list(read_documents(source, CorpusCounts()))
    assert [document.text for document in found] == ["long", "zero", "one", "three"]
    assert [document.place.partition(f"{tmp_path}/")[2] for document in found[1:3]] == ["a.tar:b/0.txt", "a.tar:b/1.json"]
    assert found[1].url == "http://host/0" and found[0].place.endswith(f"{long}.txt")
    for form in (tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "c.tar", "w", format=form) as tar:
            tar.add(__file__, "x/" * 60 + "y" * 80 + ".txt")
        assert read("webdataset", tmp_path / "c.tar")[0] == [Path(__file__).read_text()]


def test_code_is_what_is_named_like_it(tmp_path: Path) -> None:
    """Not what tools, others and build systems left there, nor what links lead to."""
    files = ["vendor/project/a.py", "vendor/project/src/b.rs", "vendor/project/Makefile"]
    others = [".git/hooks/x.sh", "node_modules/y/index.js", "src/third_party/z.c", "data.bin", "a.json", "build/lib/a.py"]
    (tmp_path / "secret.py").write_text("secret")
    for name in [*files, *(f"vendor/project/{name}" for name in others)]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "vendor/project/link.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "vendor/project/zeros.c").write_bytes(b"int main\0")
    texts, counts = read("code", tmp_path / "vendor" / "project")
    assert sorted(texts) == sorted(files)
    assert counts.bad_examples == [f"{tmp_path}/vendor/project/zeros.c: binary, not text"]


def test_the_hub_by_files_split_and_field(tmp_path: Path, no_hub: None) -> None:  # noqa: F811
    """A data set of its own schema: its files are units, which workers share."""
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(3):
        write_parquet(folder / f"dev-{number}.parquet", [""] * 10, body=TEXTS[10 * number : 10 * number + 10])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- {config_name: x, data_files: [{split: dev, path: dev-*.parquet}]}\n---\n"
    )
    source, counts = Source("hub", (str(folder),), "x", text_field="body", split="dev"), CorpusCounts()
    units = source.units()
    assert len(units) == 3
    found = [document for unit in units for document in read_unit(source, unit, counts)]
    assert [document.text for document in found] == TEXTS[:30]
    assert read("hub", folder, subset="x", text_field="body", split="dev", max_record_bytes=40)[1].too_long == 6
    assert (found[12].place, found[12].url) == (f"{folder} file 1 record 3", "http://host/2")
    assert (
        len(list(read_documents(Source("hub", (str(folder),), "x", 25, text_field="body", split="dev"), CorpusCounts()))) == 25
    )


@pytest.mark.slow
def test_a_server_that_fails_again_and_again(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every way: the shards are those of files."""
    monkeypatch.setattr("megatape.data.sources.units.UNIT_BYTES", 20_000)
    folder = tmp_path / "c4"
    folder.mkdir()
    draw = random.Random(0)
    with served() as web:
        for number in range(4):
            texts = [f"{file} " + draw.randbytes(200).hex() for file in range(number * 100, number * 100 + 100)]
            content = gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
            name = f"c4-train.{number:05}-of-00004.json.gz"
            (folder / name).write_bytes(content)
            web.files[name] = content
        kinds = [Fault(status=503), Fault(after=9000, then="reset"), Fault(after=9000, then="end"), Fault(ranges=False)]
        web.faults = [Fault()] + draw.choices([*kinds, Fault()], k=7)
        source = Source("c4", (web.address + "/",))
        prepare(Corpus(source, 0.2, tokenizer, 0), tmp_path / "out")
        assert not web.faults
    prepare(Corpus(Source("c4", (str(folder),)), 0.2, tokenizer, 0), tmp_path / "local")
    shards = sorted(path.name for path in (tmp_path / "local").glob("*.tar"))
    assert len(shards) == 8 and all(
        (tmp_path / "out" / name).read_bytes() == (tmp_path / "local" / name).read_bytes() for name in shards
    )


def test_every_kind_gives_the_same_by_url(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """From a server that fails once, which costs a second."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    write_parquet(tmp_path / "a.parquet", list(TEXTS))
    files = {
        "a.jsonl": lines,
        "b.jsonl.zst": zstd.compress(lines),
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
        "a.tar": tar_of(*((f"{number}.txt", text.encode()) for number, text in enumerate(TEXTS))),
        "a.txt": lines,
        "a.py": lines,
    }
    with served() as web:
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
            web.files[f"c4/{name}"] = content
        for kind, names in {
            "jsonl": ["a.jsonl", "b.jsonl.zst"],
            "parquet": ["a.parquet"],
            "webdataset": ["a.tar"],
            "text": ["a.txt"],
            "code": ["a.py"],
        }.items():
            web.faults = [Fault(after=1000, then="end")] if kind == "parquet" else []
            local = read(kind, *(tmp_path / name for name in names))[0]
            source = Source(kind, tuple(web.url(f"c4/{name}") for name in names))
            assert [document.text for document in read_documents(source, CorpusCounts())] == local
        source = Source("jsonl", (web.url("c4/{a.jsonl,b.jsonl.zst}"),))
        index, counts = prepare(Corpus(source, 0.2, tokenizer, 0), tmp_path / "out")
        assert counts is not None and counts.total.dropped == {"duplicates": 50} and list(index.ledger) == list(source.inputs)
