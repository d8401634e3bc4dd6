"""Inputs of a data directory from which samples come."""

import json
from pathlib import Path

import pytest

from megatape.config import parse_config
from megatape.data.derived.merge import merge
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from megatape.data.training.inputs import MAX_INPUTS
from megatape.data.training.run_data import RunData
from megatape.data.training.selection import SampleGroups
from tests.helpers.data.data_directory import small_tokenizer
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.small_run import VOCAB_SIZE, small_config

WORDS = {"a": "apple avocado almond", "b": "banana blueberry bread", "c": "carrot cabbage coconut"}


def write_texts(folder: Path, word: str, count: int = 60) -> Path:
    """Write files of documents whose words consist of one letter."""
    folder.mkdir()
    for number in range(2):
        lines = [json.dumps({"text": f"{WORDS[word]} {number} {line} " * 5}) for line in range(count)]
        (folder / f"part-{number}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def prepare_inputs(inputs: list[Path], out: Path, unit_bytes: int | None = None) -> Path:
    source = Source("jsonl", tuple(map(str, inputs)), unit_bytes=unit_bytes)
    prepare(PreparationOptions(source, 0.2, small_tokenizer(), VOCAB_SIZE), out)
    return out


def open_run(data: Path, tmp_path: Path, samples: int = 24, kind: str = "packed") -> RunData:
    raw = small_config(data, tmp_path / "run")
    raw["data"] |= {"samples": kind, "mask_documents": kind == "best_fit"}
    raw["model"]["vocab_size"] = 512
    raw["evaluation"] = {"samples": samples}
    return open_run_data(parse_config(raw, "test"))


def check_texts(data: RunData, groups: SampleGroups, words: dict[str, str]) -> None:
    """Check that each sample has most of its tokens in documents of its group."""
    split = data.validation[""]
    for name, samples in groups.items():
        assert samples
        for sample in samples:
            text = data.tokenizer.decode(split.sample(sample).tokens.tolist())
            counts = {word: sum(text.count(each) for each in WORDS[word].split()) for word in WORDS}
            assert max(counts, key=counts.__getitem__) == words[name], (name, text)


@pytest.mark.parametrize("kind", ["packed", "best_fit"])
@pytest.mark.parametrize("unit_bytes", [None, 4000])
def test_the_inputs_of_a_preparation(kind: str, unit_bytes: int | None, tmp_path: Path) -> None:
    """The first samples come from one input, samples at equal distances from both in proportion to their tokens."""
    inputs = [write_texts(tmp_path / "first", "a", 90), write_texts(tmp_path / "second", "b", 30)]
    data = open_run(prepare_inputs(inputs, tmp_path / "data", unit_bytes), tmp_path, kind=kind)
    groups = data.evaluated["spread"][""]
    assert list(groups) == [str(each) for each in inputs]
    assert 2 < len(groups[str(inputs[0])]) / len(groups[str(inputs[1])]) < 5
    check_texts(data, groups, dict(zip(groups, "ab", strict=True)))
    assert data.evaluated["first"][""] == {"": list(range(24))}


def test_files_as_inputs(tmp_path: Path) -> None:
    """A file is an input as well. Its documents differ from those of a file whose name has the same beginning."""
    files = [tmp_path / "x.jsonl", tmp_path / "x.jsonl-more.jsonl"]
    for file, word in zip(files, "ab", strict=True):
        file.write_text("".join(json.dumps({"text": f"{WORDS[word]} {line} " * 5}) + "\n" for line in range(80)))
    data = open_run(prepare_inputs(files, tmp_path / "data"), tmp_path)
    groups = data.evaluated["spread"][""]
    check_texts(data, groups, {str(files[0]): "a", str(files[1]): "b"})
    assert len(groups) == 2


def test_merged_folders(tmp_path: Path) -> None:
    """In a merged directory samples are grouped by folder, because folders may have inputs of the same name."""
    folders = []
    for word in "ab":
        inputs = write_texts(tmp_path / word, word)
        source = Source("jsonl", (str(inputs),))
        folders.append(tmp_path / f"data-{word}")
        prepare(PreparationOptions(source, 0.2, small_tokenizer(), VOCAB_SIZE), folders[-1])
    merge(folders, tmp_path / "merged")
    data = open_run(tmp_path / "merged", tmp_path)
    groups = data.evaluated["spread"][""]
    assert list(groups) == [str(folder) for folder in folders]
    check_texts(data, groups, dict(zip(groups, "ab", strict=True)))


def test_no_groups(tmp_path: Path) -> None:
    """One input, or too many inputs for losses by input."""
    folder = write_texts(tmp_path / "texts", "a")
    one = open_run(prepare_inputs([folder], tmp_path / "one"), tmp_path)
    assert list(one.evaluated["spread"][""]) == [""]
    files = []
    for number in range(MAX_INPUTS + 1):
        files.append(tmp_path / f"{number:02}.jsonl")
        files[-1].write_text("".join(json.dumps({"text": f"{number} {line} " * 9}) + "\n" for line in range(40)))
    many = open_run(prepare_inputs(files, tmp_path / "many"), tmp_path, samples=10**6)
    assert list(many.evaluated["spread"][""]) == [""]
