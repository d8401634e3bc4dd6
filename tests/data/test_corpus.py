import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megatape.data.sources.source import CorpusCounts, Source, read_documents


def read(kind: str, *inputs: Path, **options: Any) -> tuple[list[str], CorpusCounts]:
    counts = CorpusCounts()
    return [document.text for document in read_documents(Source(kind, tuple(map(str, inputs)), **options), counts)], counts


def json_lines(*texts: str) -> bytes:
    return b"".join(
        json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "u"}).encode() + b"\n" for text in texts
    )


@pytest.fixture
def c4(tmp_path: Path) -> Path:
    """C4's own layout: numbered gzip shards and a validation file beside them."""
    for number, texts in enumerate([("one", "two\nlines"), ("three ✓",)]):
        (tmp_path / f"c4-train.{number:05d}-of-00002.json.gz").write_bytes(gzip.compress(json_lines(*texts)))
    (tmp_path / "c4-validation.00000-of-00001.json.gz").write_bytes(gzip.compress(json_lines("held out")))
    return tmp_path


def test_c4_directory_gives_its_training_documents_in_order(c4: Path) -> None:
    texts, counts = read("c4", c4)
    assert texts == ["one", "two\nlines", "three ✓"]
    assert (counts.total.kept, counts.text_bytes, counts.total.dropped) == (3, 3 + 9 + 9, {})


def test_c4_single_file(c4: Path) -> None:
    assert read("c4", c4 / "c4-train.00001-of-00002.json.gz")[0] == ["three ✓"]


@pytest.fixture
def no_hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` on local files, which it treats like a repository on the hub."""
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def test_hub_streams_the_same_documents(c4: Path, no_hub: None) -> None:
    assert read("hub", c4)[0] == read("c4", c4)[0]


def test_hub_subset_and_bad_records(tmp_path: Path, no_hub: None) -> None:
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n"
        "- {config_name: en, data_files: [{split: train, path: en/*.json.gz}]}\n"
        "- {config_name: de, data_files: [{split: train, path: de/*.json.gz}]}\n---\n"
    )
    for subset, text in (("en", "dog"), ("de", "Hund")):
        (tmp_path / subset).mkdir()
        lines = json_lines(text) + b'{"text": null}\n' + json_lines(text + " 2")
        (tmp_path / subset / "c4-train.00000-of-00001.json.gz").write_bytes(gzip.compress(lines))
    texts, counts = read("hub", tmp_path, subset="de")
    assert texts == ["Hund", "Hund 2"]
    assert counts.bad_examples == [f"{tmp_path} record 2: `text` is missing or not a string"]
    with pytest.raises(ValueError, match=r"subset fr, split train\) failed after 0 documents"):
        read("hub", tmp_path, subset="fr")


def test_hub_failure_says_what_to_do(tmp_path: Path, no_hub: None) -> None:
    (tmp_path / "c4-train.00000-of-00001.json").write_bytes(json_lines("one") + b'{"text": \n' + json_lines("two"))
    with pytest.raises(ValueError, match="source hub .* failed after 0 documents: .*`source` c4, jsonl or parquet"):
        read("hub", tmp_path)


def test_jsonl_plain_and_compressed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines("plain"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json_lines("compressed")))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(json_lines("as C4")))
    (tmp_path / "d.json").write_bytes(json_lines("of any name"))
    assert read("jsonl", tmp_path)[0] == ["plain", "compressed", "as C4"]
    assert read("jsonl", tmp_path / "d.json")[0] == ["of any name"]


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


def test_only_the_first_bad_records_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{\n" * 100 + json_lines("good"))
    counts = read("jsonl", tmp_path, max_bad_fraction=0.995)[1]
    assert (counts.bad, len(counts.bad_examples)) == (100, 5)


@pytest.mark.parametrize("damage", [lambda blob: blob[:-30], lambda blob: blob[:100] + b"\0" * 40 + blob[140:]])
def test_damaged_gzip_names_the_file(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "c4-train.00000-of-00001.json.gz"
    path.write_bytes(damage(gzip.compress(json_lines(*map(str, range(500))))))
    with pytest.raises(ValueError, match=f"{path.name}: corrupted or truncated gzip file .* again"):
        read("c4", tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.txt"])
def test_long_records_are_skipped_in_little_memory(tmp_path: Path, name: str) -> None:
    """A line of 64 MiB between two documents; and such a text file."""
    limit, part = 2**16, b"x" * 2**23
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


def test_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"first\r\n\n file ")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.txt").write_text("second")
    (tmp_path / "c.txt").write_bytes(b"ab\xff")
    (tmp_path / "d.bin").write_text("not text")
    texts, counts = read("text", tmp_path)
    assert texts == ["first\r\n\n file ", "second"]
    assert counts.bad_examples == [f"{tmp_path / 'c.txt'}: invalid UTF-8 (invalid start byte at byte 2)"]
    assert read("text", tmp_path / "d.bin")[0] == ["not text"]


def test_python_is_the_standard_library_without_tests() -> None:
    texts, counts = read("python")
    assert counts.text_bytes > 5_000_000
    assert Path(json.__file__).read_text() in texts
    import test.support

    assert Path(test.support.__file__).read_text() not in texts
    assert Path(pytest.__file__).read_text() not in texts
    assert texts[:50] == read("python", max_documents=50)[0]


@pytest.mark.parametrize(
    "source, message",
    [
        (("c5",), "source 'c5' is unknown: choose one of c4, hub"),
        (("c4",), "source c4 needs `input`"),
        (("python", ("x",)), "source python takes no `input`"),
        (("hub", ("x", "y")), "takes one data set name"),
        (("c4", ("x",), "en"), "subset 'en' belongs to `source` hub"),
        (("python", (), None, 0), "max_documents is 0"),
        (("python", (), None, None, 0), "max_record_bytes is 0"),
        (("text", ("x",), None, None, 1, "body"), "text_field 'body': the documents of `source` text have no fields"),
        (("c4", ("x",), None, None, 1, "text", "test"), "split 'test' belongs to `source` hub"),
        (("hub", ("x",), None, None, 1, "text", "test", ("y",)), "validation_input y: `source` hub has no files"),
        (("c4", ("x",), None, 5, 1, "text", "train", ("y",)), "max_documents and `validation_input`: give one"),
        (("c4", ("x",), None, None, 1, "text", "train", (), 1.5), "max_bad_fraction is 1.5"),
    ],
)
def test_impossible_sources(source: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Source(*source)


def test_wrong_path(c4: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="input .*nowhere: no such file or directory"):
        next(read_documents(Source("c4", (str(c4), str(tmp_path / "nowhere"))), CorpusCounts()))  # before the first document


def test_directory_without_matching_files(c4: Path) -> None:
    with pytest.raises(ValueError, match=r"no file named \*.parquet in this directory"):
        read("parquet", c4)


def test_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines("", " ") + b"{\n")
    with pytest.raises(
        ValueError, match=r"no documents found \(2 empty, 0 longer than .*, 1 bad, first: .*a.jsonl:3: malformed JSON"
    ):
        read("jsonl", tmp_path)
