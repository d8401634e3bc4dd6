"""Data directories lose nothing by exporting and importing again, in any format, and in little memory."""

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from megatape.config import Config
from megatape.data.formats.documents import divided
from megatape.data.formats.flat import Flat
from megatape.data.formats.mds import Mds
from megatape.data.formats.megatron import Megatron
from megatape.data.shards.index import load_index
from megatape.registry import TOKEN_FORMATS
from tests.helpers.data.json_edits import set_file_entry
from tests.helpers.data.token_files import IDS
from tests.helpers.processes.command import Command
from tests.helpers.runs.run_data import open_run_data


class Exported(NamedTuple):
    """Exported splits of the data directory, and a command line importing the training split."""

    train: Path
    validation: Path
    import_words: list[object]


@pytest.fixture(params=TOKEN_FORMATS)
def exported(
    request: pytest.FixtureRequest,
    data_directory: Path,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> Exported:
    """Export the data directory in each format, with blocks and shards ending inside documents."""
    monkeypatch.setattr("megatape.data.formats.flat.BLOCK_IDS", 1009)
    monkeypatch.setattr("megatape.data.formats.mds.SHARD_BYTES", 5000)
    form = request.param
    folder = tmp_path / "out"
    status, output, errors = command("data", "export", data_directory, "--format", form, "--output", folder)
    assert status == 0, errors
    assert "train: " in output, errors

    suffix = ""
    if form == "flat":
        suffix = ".bin"
    train = folder / f"train{suffix}"
    validation = folder / f"validation{suffix}"
    words = ["data", "import", "--format", form, "--tokenizer", folder / "tokenizer.model", "--input", train]
    return Exported(train, validation, words)


def test_export_and_import_give_the_same_shards(
    exported: Exported, data_directory: Path, raw_config: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    """The shards are equal to the byte, and a run can train on them."""
    folder = tmp_path / "back"
    status, output, errors = command(*exported.import_words, "--validation", exported.validation, "--output", folder)
    assert status == 0, errors
    assert "note" not in output, errors

    imported = load_index(folder).splits
    original = load_index(data_directory).splits
    for split, expected in original.items():
        assert imported[split].documents == expected.documents
        assert imported[split].shards == expected.shards
        assert imported[split].unigram_entropy == expected.unigram_entropy
    raw_config["data"]["path"] = str(folder)
    assert open_run_data(Config.model_validate(raw_config)).train.num_tokens == original["train"].tokens


def test_import_can_hold_out_a_share_of_one_input(
    exported: Exported, data_directory: Path, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "share"
    status, _, errors = command(*exported.import_words, "--validation-share", "0.3", "--output", folder)
    assert status == 0, errors

    original = load_index(data_directory).splits["train"]
    splits = load_index(folder).splits.values()
    assert sum(split.tokens for split in splits) == original.tokens
    for split in splits:
        assert 0 < split.documents < original.documents
    status, _, errors = command("data", "report", folder, "--verify")
    assert status == 0, errors


def test_prompts_and_answers_are_not_exported(data_directory: Path, tmp_path: Path, command: Command) -> None:
    folder = shutil.copytree(data_directory, tmp_path / "answers")
    numbers = {"sha256": "", "examples": 1, "tokens": 1, "longest": 2, "unigram_entropy": 0.0}
    answers = {split: {"file": f"{split}.npy", **numbers} for split in ("train", "validation")}
    set_file_entry(folder / "index.json", "answers", answers)
    status, _, errors = command("data", "export", folder, "--format", "flat", "--output", tmp_path / "out")
    assert status == 2
    assert "holds prompts and answers" in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("form", "file"),
    [(Flat, "x.bin"), (Mds, "x"), (Megatron, "x")],
    ids=["Flat", "Mds", "Megatron"],
)
def test_reading_and_writing_need_little_memory(form: Any, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than 8 MB of 20 MB are in memory at once."""
    monkeypatch.setattr("megatape.data.formats.mds.SHARD_BYTES", 2**20)
    # Reading untrusted JSON would reserve 64 MB.
    monkeypatch.setattr("megatape.data.formats.mds.read_json", lambda path: json.loads(path.read_text()))
    ids = np.arange(10_000, dtype=IDS) + 2
    documents = (ids[::-1] for _ in range(1000))
    path = tmp_path / file
    tracemalloc.start()
    try:
        form().write(tmp_path / "x", documents, IDS)
        num_tokens = sum(document.size for document in divided(form().read(path, IDS), 2, path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_tokens == 10_000_000
    assert peak < 8e6
