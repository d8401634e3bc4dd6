"""Data sets of the hub."""

import gzip
from pathlib import Path

import pytest

from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_documents, read_unit
from megatape.data.sources.source import Source
from megatape.errors import UserError
from tests.helpers.data.sources import json_lines, read, write_parquet


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
    assert counts.total.dropped == {"empty documents": 1} and not counts.bad
    with pytest.raises(ValueError, match=r"subset fr, split train\) failed after 0 documents"):
        read("hub", tmp_path, subset="fr")


def test_hub_failure_says_what_to_do(tmp_path: Path, no_hub: None) -> None:
    (tmp_path / "c4-train.00000-of-00001.json").write_bytes(json_lines("one") + b'{"text": \n' + json_lines("two"))
    with pytest.raises(ValueError, match="source hub .* failed after 0 documents: .*`source` c4, jsonl or parquet"):
        read("hub", tmp_path)


def test_hub_without_network_is_one_line(monkeypatch: pytest.MonkeyPatch, no_hub: None) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"^source hub nobody/nothing .* failed .*: ConnectionError: .*`hf auth login` or HF_TOKEN.*$"
    ):
        Source("hub", ("nobody/nothing",)).units()
    with pytest.raises(UserError, match="^hf://datasets/nobody/nothing/x.jsonl: OfflineModeIsEnabled: "):
        Source("jsonl", ("hf://datasets/nobody/nothing/x.jsonl",)).units()


TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]


def test_the_hub_by_files_split_and_field(tmp_path: Path, no_hub: None) -> None:
    """A data set of its own schema: its files are units, which workers share."""
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(3):
        write_parquet(folder / f"dev-{number}.parquet", [""] * 10, body=TEXTS[10 * number : 10 * number + 10])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- {config_name: x, data_files: [{split: dev, path: dev-*.parquet}]}\n---\n"
    )
    source = Source("hub", (str(folder),), "x", text_field="body", split="dev")
    counts = CorpusCounts()
    units = source.units()
    assert len(units) == 3
    found = [document for unit in units for document in read_unit(source, unit, counts)]
    assert [document.text for document in found] == TEXTS[:30]
    assert read("hub", folder, subset="x", text_field="body", split="dev", max_record_bytes=40)[1].too_long == 6
    assert (found[12].place, found[12].url) == (f"{folder} file 1 record 3", "http://host/2")
    assert (
        len(list(read_documents(Source("hub", (str(folder),), "x", 25, text_field="body", split="dev"), CorpusCounts()))) == 25
    )
