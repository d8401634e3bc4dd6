"""Steps and evaluations whose samples have no targets: skipped or refused, and never a loss of 0."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.shards.index import build_index
from megatape.data.shards.writer import SplitWriter
from megatape.data.training.mixing.order import sample_index
from megatape.run_folder import RunFolder
from tests.helpers.data.data_directory import small_tokenizer
from tests.helpers.runs.case_runs import run_cases
from tests.helpers.runs.run_folders import read_entries

LENGTH = 32
SAMPLES = 8
# Number of samples with targets in the run "some"
NUM_WITH_TARGETS = 2
STEPS = 6


def write_data(directory: Path, empty: dict[str, range]) -> Path:
    """Write a data directory of 8 samples a split, some of which consist only of ends of documents.

    With document masks, an end has no target.

    Args:
        directory: New folder.
        empty: Samples without targets, by split.
    """
    directory.mkdir()
    tokenizer = small_tokenizer()
    generator = np.random.default_rng(0)
    splits = {}
    for split, samples in empty.items():
        writer = SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id)
        for sample in range(SAMPLES):
            ids = generator.integers(tokenizer.vocab_size // 2, tokenizer.vocab_size, LENGTH)
            if sample in samples:
                ids = np.full(LENGTH, tokenizer.eos_id)
            writer.add(ids, LENGTH)
        writer.add(np.array([tokenizer.eos_id]), 0)
        splits[split] = writer.close()
    build_index(directory, tokenizer, source={"kind": "test"}, validation_share=0.5, splits=splits)
    return directory


@pytest.fixture
def config(raw_config: dict[str, Any]) -> dict[str, Any]:
    raw_config["model"]["vocab_size"] = small_tokenizer().vocab_size
    raw_config["data"]["mask_documents"] = True
    raw_config["training"] |= {"steps": STEPS, "global_batch_size": 2, "micro_batch_size": 1, "max_skipped_steps": 3}
    return raw_config


@pytest.fixture
def results(config: dict[str, Any], tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Train on data with samples without targets: some of the training samples, all of them, all validation samples."""
    empty = {
        "some": {"train": range(NUM_WITH_TARGETS, SAMPLES), "validation": range(SAMPLES // 2)},
        "all": {"train": range(SAMPLES), "validation": range(0)},
        "validation": {"train": range(0), "validation": range(SAMPLES)},
    }
    cases = []
    for name, samples in empty.items():
        directory = write_data(tmp_path / name, samples)
        cases.append({"name": name, "set": {"data.path": str(directory)}})
    results = run_cases(config, cases, 2, tmp_path / "workers")
    return dict(zip(empty, results, strict=True))


def test_no_targets(config: dict[str, Any], results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Steps without targets are skipped, up to a number in a row. An evaluation without targets ends the run."""
    assert results["some"] == {"step": 0, "samples": 0}
    folder = RunFolder(Path(config["run"]["directory"]) / "some")
    seed = config["training"].get("seed", 1234)
    check_skipped_steps(folder, seed)
    assert "its samples have no targets; the step is skipped" in (tmp_path / "workers" / "rank0.log").read_text()

    error = results["all"]["error"]
    assert error.startswith("DataError")
    assert "its samples have no targets. That makes 4 skipped steps in a row" in error
    assert "check data.samples and data.prompt_end" in error

    error = results["validation"]["error"]
    assert f"the evaluation after step {STEPS}: the 8 validation samples of a corpus have no targets" in error


def check_skipped_steps(folder: RunFolder, seed: int) -> None:
    """Check that exactly the steps without targets are skipped, and not counted as updates."""
    metrics = read_entries(folder.metrics)
    num_skipped = 0
    for entry in metrics:
        positions = range(entry["samples"] - 2, entry["samples"])
        samples = [sample_index(position, SAMPLES, seed) for position in positions]
        if min(samples) >= NUM_WITH_TARGETS:
            num_skipped += 1
            assert entry["loss"] is None
            assert entry["skipped"] == "its samples have no targets"
        else:
            assert entry["loss"] > 1
            assert "skipped" not in entry
    assert 0 < num_skipped < STEPS
    assert metrics[-1]["validation_loss"] > 1
    state = json.loads((folder.checkpoint(STEPS) / "state.json").read_text())
    assert state["updates"] == STEPS - num_skipped
