"""Data sets on the hub."""

import gzip
from pathlib import Path

import pytest

from megatape.data.counts import CorpusCounts
from megatape.data.sources.reading import read_unit
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
        lines = json_lines(text) + b'{"text": null}\n' + json_lines(text + " 2")
        path = tmp_path / subset / "c4-train.00000-of-00001.json.gz"
        path.parent.mkdir()
        path.write_bytes(gzip.compress(lines))

    texts, counts = read("hub", tmp_path, subset="de")

    assert texts == ["Hund", "Hund 2"]
    assert counts.total.dropped == {"empty documents": 1}
    assert counts.bad == 0
    with pytest.raises(ValueError, match=r"subset fr, split train\) failed after 0 documents"):
        read("hub", tmp_path, subset="fr")


def test_hub_failure_says_what_to_do(tmp_path: Path, no_hub: None) -> None:
    content = json_lines("one") + b'{"text": \n' + json_lines("two")
    (tmp_path / "c4-train.00000-of-00001.json").write_bytes(content)

    with pytest.raises(ValueError, match="source hub .* failed after 0 documents: .*`source` c4, jsonl or parquet"):
        read("hub", tmp_path)


def test_a_missing_network_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch, no_hub: None) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    message = r"^source hub nobody/nothing .* failed .*: ConnectionError: .*`hf auth login` or HF_TOKEN.*$"
    with pytest.raises(UserError, match=message):
        Source("hub", ("nobody/nothing",)).units()
    with pytest.raises(UserError, match="^hf://datasets/nobody/nothing/x.jsonl: OfflineModeIsEnabled: "):
        Source("jsonl", ("hf://datasets/nobody/nothing/x.jsonl",)).units()


TEXTS = [f"Document {number} ✓\n" + "the fox " * (number % 5) for number in range(50)]


@pytest.fixture
def data_set(tmp_path: Path, no_hub: None) -> Path:
    """A data set with a subset, a split and a text field of unusual names, in three files."""
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(3):
        write_parquet(folder / f"dev-{number}.parquet", [""] * 10, body=TEXTS[10 * number : 10 * number + 10])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- {config_name: x, data_files: [{split: dev, path: dev-*.parquet}]}\n---\n"
    )
    return folder


def test_files_of_the_hub_are_units(data_set: Path) -> None:
    """Workers share the files."""
    source = Source("hub", (str(data_set),), "x", text_field="body", split="dev")
    units = source.units()
    counts = CorpusCounts()

    documents = []
    for unit in units:
        documents += list(read_unit(source, unit, counts))

    assert len(units) == 3
    assert [document.text for document in documents] == TEXTS[:30]
    assert documents[12].location == f"{data_set} file 1 record 3"
    assert documents[12].url == "http://host/2"


def test_limits_apply_to_the_hub(data_set: Path) -> None:
    options = {"subset": "x", "text_field": "body", "split": "dev"}

    _, counts = read("hub", data_set, **options, max_record_bytes=40)
    texts, _ = read("hub", data_set, **options, max_documents=25)

    assert counts.too_long == 6
    assert len(texts) == 25
