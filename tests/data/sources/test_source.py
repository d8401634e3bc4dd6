"""Sources that are refused because of their options, paths or bad records."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from megatape.commands.options.data_options import RecordLimitOptions
from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents
from megatape.data.sources.source import Source
from megatape.errors import UserError
from megatape.utils.values.options import read_options
from tests.helpers.data.sources import json_lines, read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "c5"}, "source 'c5' is unknown: choose one of c4, hub"),
        ({"kind": "c4"}, "source c4 needs `input`"),
        ({"kind": "python", "inputs": ("x",)}, "source python takes no `input`"),
        ({"kind": "hub", "inputs": ("x", "y")}, "takes one data set name"),
        ({"kind": "c4", "inputs": ("x",), "subset": "en"}, "subset 'en' belongs to `source` hub"),
        (
            {"kind": "text", "inputs": ("x",), "text_field": "body"},
            "text_field 'body': the documents of `source` text have no fields",
        ),
        ({"kind": "c4", "inputs": ("x",), "split": "test"}, "split 'test' belongs to `source` hub"),
        (
            {"kind": "hub", "inputs": ("x",), "split": "test", "validation": ("y",)},
            "validation_input y: `source` hub has no files",
        ),
        (
            {"kind": "c4", "inputs": ("x",), "max_documents": 5, "validation": ("y",)},
            "max_documents and `validation_input`: give one",
        ),
    ],
)
def test_impossible_sources_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Source(**options)


def test_wrong_path(c4: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="input .*nowhere: no such file or directory"):
        next(read_documents(Source("c4", (str(c4), str(tmp_path / "nowhere"))), CorpusCounts()))  # before the first document


def test_directory_without_matching_files(c4: Path) -> None:
    with pytest.raises(ValueError, match=r"no file named \*.parquet in this directory"):
        read("parquet", c4)


def test_a_file_of_both_splits_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines("text"))

    with pytest.raises(UserError, match="validation_input: .*b.jsonl is given twice"):
        Source("jsonl", (str(tmp_path),), validation=(str(tmp_path / "b.jsonl"),)).units()


@pytest.fixture
def incomplete(tmp_path: Path) -> Path:
    """A folder with four of eight files, as left by an interrupted download."""
    for number in (0, 3, 4, 7):
        content = gzip.compress(json_lines(str(number)))
        (tmp_path / f"c4-train.{number:05d}-of-00008.json.gz").write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("kind", ["c4", "jsonl"])
def test_an_incomplete_set_is_refused_in_folders(incomplete: Path, kind: str) -> None:
    message = (
        rf"^input {incomplete}: of the 8 files c4-train.\*-of-00008.json.gz these are missing: 1-2, 5-6. Download them, "
        "or give `partial`"
    )
    with pytest.raises(UserError, match=message):
        read(kind, incomplete)


def test_an_incomplete_set_is_refused_for_validation(incomplete: Path) -> None:
    with pytest.raises(UserError, match="^validation_input .*these are missing"):
        Source("jsonl", (__file__,), validation=(str(incomplete),)).units()


@pytest.mark.parametrize("kind", ["c4", "jsonl"])
def test_a_part_of_a_set_is_read_on_request(incomplete: Path, kind: str) -> None:
    """Files named one by one are a request, too."""
    assert read(kind, incomplete, partial=True)[0] == ["0", "3", "4", "7"]
    assert read(kind, *sorted(incomplete.iterdir())[1:])[0] == ["3", "4", "7"]


def test_a_partial_source_has_the_same_description(incomplete: Path) -> None:
    partial = Source("c4", (str(incomplete),), partial=True)

    assert partial.describe() == Source("c4", (str(incomplete),)).describe()


def test_a_source_without_documents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines("", " ") + b"{\n")

    message = r"no documents found \(2 empty, 0 longer than .*, 1 bad, first: .*a.jsonl:3: malformed JSON"
    with pytest.raises(ValueError, match=message):
        read("jsonl", tmp_path)


def test_only_the_first_bad_records_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{\n" * 100 + json_lines("good"))

    _, counts = read("jsonl", tmp_path, max_bad_fraction=0.995)

    assert counts.bad == 100
    assert len(counts.bad_examples) == 5


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_record_bytes", 0), ("max_record_bytes", 2**31), ("max_record_bytes", 10**30), ("max_bad_fraction", 1.5)],
)
def test_invalid_record_limits_are_refused(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{option}: must be .*got '{value}'"):
        read_options(RecordLimitOptions, {option: str(value)})
