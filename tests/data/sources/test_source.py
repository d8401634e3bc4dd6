"""Sources that are refused: their options, paths and bad records."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from megatape.commands.data.options import RecordLimitOptions
from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import UserError
from megatape.utils.options import read_options
from tests.helpers.data.sources import json_lines, read


@pytest.mark.parametrize(
    "source, message",
    [
        (("c5",), "source 'c5' is unknown: choose one of c4, hub"),
        (("c4",), "source c4 needs `input`"),
        (("python", ("x",)), "source python takes no `input`"),
        (("hub", ("x", "y")), "takes one data set name"),
        (("c4", ("x",), "en"), "subset 'en' belongs to `source` hub"),
        (("text", ("x",), None, None, 1, "body"), "text_field 'body': the documents of `source` text have no fields"),
        (("c4", ("x",), None, None, 1, "text", "test"), "split 'test' belongs to `source` hub"),
        (("hub", ("x",), None, None, 1, "text", "test", ("y",)), "validation_input y: `source` hub has no files"),
        (("c4", ("x",), None, 5, 1, "text", "train", ("y",)), "max_documents and `validation_input`: give one"),
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


def test_a_file_of_both_splits(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines("text"))
    with pytest.raises(UserError, match="validation_input: .*b.jsonl is given twice"):
        Source("jsonl", (str(tmp_path),), validation=(str(tmp_path / "b.jsonl"),)).units()


def test_an_incomplete_set_is_refused_in_folders(tmp_path: Path) -> None:
    """A download that was interrupted; files that are named one by one are what is wanted, and so are parts on request."""
    for number in (0, 3, 4, 7):
        (tmp_path / f"c4-train.{number:05d}-of-00008.json.gz").write_bytes(gzip.compress(json_lines(str(number))))
    for kind in ("c4", "jsonl"):
        with pytest.raises(
            UserError,
            match=rf"^input {tmp_path}: of the 8 files c4-train.\*-of-00008.json.gz these are missing: 1-2, 5-6. Download "
            "them, or give `partial`",
        ):
            read(kind, tmp_path)
        assert read(kind, tmp_path, partial=True)[0] == ["0", "3", "4", "7"]
        assert read(kind, *sorted(tmp_path.iterdir())[1:])[0] == ["3", "4", "7"]
    assert Source("c4", (str(tmp_path),), partial=True).describe() == Source("c4", (str(tmp_path),)).describe()
    with pytest.raises(UserError, match="^validation_input .*these are missing"):
        Source("jsonl", (__file__,), validation=(str(tmp_path),)).units()


def test_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines("", " ") + b"{\n")
    with pytest.raises(
        ValueError, match=r"no documents found \(2 empty, 0 longer than .*, 1 bad, first: .*a.jsonl:3: malformed JSON"
    ):
        read("jsonl", tmp_path)


def test_only_the_first_bad_records_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{\n" * 100 + json_lines("good"))
    counts = read("jsonl", tmp_path, max_bad_fraction=0.995)[1]
    assert (counts.bad, len(counts.bad_examples)) == (100, 5)


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_record_bytes", 0), ("max_record_bytes", 2**31), ("max_record_bytes", 10**30), ("max_bad_fraction", 1.5)],
)
def test_invalid_record_limits(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{option}: must be .*got '{value}'"):
        read_options(RecordLimitOptions, {option: str(value)})
