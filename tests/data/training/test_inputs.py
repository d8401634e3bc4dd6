"""Evaluation by input: samples of a data directory are grouped by the input that most of their tokens come from."""

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
from tests.helpers.data.sources import text_lines
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.small_run import VOCAB_SIZE, small_config

WORDS = {"a": "apple avocado almond", "b": "banana blueberry bread", "c": "carrot cabbage coconut"}


def write_texts(folder: Path, letter: str, count: int = 60) -> Path:
    """Write two files of documents whose words start with one letter."""
    folder.mkdir()
    for number in range(2):
        texts = [f"{WORDS[letter]} {number} {line} " * 5 for line in range(count)]
        (folder / f"part-{number}.jsonl").write_bytes(text_lines(texts))
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


def most_frequent_letter(text: str) -> str:
    """Return the letter whose words are most frequent in a text."""
    counts = {letter: sum(text.count(word) for word in words.split()) for letter, words in WORDS.items()}
    return max(counts, key=counts.__getitem__)


def check_texts(data: RunData, groups: SampleGroups, letters: dict[str, str]) -> None:
    """Check that each sample has most of its tokens in documents of its group."""
    split = data.validation[""]
    for name, samples in groups.items():
        assert samples
        for sample in samples:
            text = data.tokenizer.decode(split.sample(sample).tokens.tolist())
            assert most_frequent_letter(text) == letters[name], (name, text)


@pytest.mark.parametrize("kind", ["packed", "best_fit"])
@pytest.mark.parametrize("unit_bytes", [None, 4000])
def test_spread_samples_come_from_each_input_in_proportion_to_its_tokens(
    kind: str, unit_bytes: int | None, tmp_path: Path
) -> None:
    """The first samples of the split all come from one input, so they have no groups."""
    inputs = [write_texts(tmp_path / "first", "a", 90), write_texts(tmp_path / "second", "b", 30)]
    names = [str(folder) for folder in inputs]
    data = open_run(prepare_inputs(inputs, tmp_path / "data", unit_bytes), tmp_path, kind=kind)

    groups = data.evaluated["spread"][""]
    assert list(groups) == names
    ratio = len(groups[names[0]]) / len(groups[names[1]])
    assert 2 < ratio < 5
    check_texts(data, groups, dict(zip(names, "ab", strict=True)))
    assert data.evaluated["first"][""] == {"": list(range(24))}


def test_a_file_is_an_input(tmp_path: Path) -> None:
    """Documents are kept apart from those of a file whose name starts with this file's name."""
    files = [tmp_path / "x.jsonl", tmp_path / "x.jsonl-more.jsonl"]
    for file, letter in zip(files, "ab", strict=True):
        file.write_bytes(text_lines([f"{WORDS[letter]} {line} " * 5 for line in range(80)]))
    data = open_run(prepare_inputs(files, tmp_path / "data"), tmp_path)

    groups = data.evaluated["spread"][""]
    assert len(groups) == 2
    check_texts(data, groups, {str(files[0]): "a", str(files[1]): "b"})


def test_samples_of_a_merged_directory_are_grouped_by_folder(tmp_path: Path) -> None:
    """Folders may have inputs of the same name."""
    folders = []
    for letter in "ab":
        inputs = write_texts(tmp_path / letter, letter)
        folders.append(prepare_inputs([inputs], tmp_path / f"data-{letter}"))
    merge(folders, tmp_path / "merged")
    data = open_run(tmp_path / "merged", tmp_path)

    groups = data.evaluated["spread"][""]
    names = [str(folder) for folder in folders]
    assert list(groups) == names
    check_texts(data, groups, dict(zip(names, "ab", strict=True)))


def test_one_input_has_no_groups(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", "a")
    data = open_run(prepare_inputs([folder], tmp_path / "data"), tmp_path)
    assert list(data.evaluated["spread"][""]) == [""]


def test_too_many_inputs_have_no_groups(tmp_path: Path) -> None:
    files = []
    for number in range(MAX_INPUTS + 1):
        file = tmp_path / f"{number:02}.jsonl"
        file.write_bytes(text_lines([f"{number} {line} " * 9 for line in range(40)]))
        files.append(file)
    data = open_run(prepare_inputs(files, tmp_path / "data"), tmp_path, samples=10**6)
    assert list(data.evaluated["spread"][""]) == [""]
