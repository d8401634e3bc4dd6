"""Steps and evaluations whose samples have no targets: skipped or refused, and never a loss of 0."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatape.data.shards.index import build_index
from megatape.data.shards.writer import SplitWriter
from megatape.data.training.order import sample_index
from tests.helpers.data.data_directory import small_tokenizer
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES

LENGTH = 32
SAMPLES = 8
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


def test_no_targets(config: dict[str, Any], tmp_path: Path) -> None:
    some = write_data(tmp_path / "some", {"train": range(SAMPLES // 4, SAMPLES), "validation": range(SAMPLES // 2)})
    none = write_data(tmp_path / "none", {"train": range(SAMPLES), "validation": range(0)})
    unmeasured = write_data(tmp_path / "unmeasured", {"train": range(0), "validation": range(SAMPLES)})
    cases = [{"name": path.name, "set": {"data.path": str(path)}} for path in (some, none, unmeasured)]
    results = run_workers(TRAIN_CASES, 2, {"config": config, "cases": cases}, tmp_path / "workers")[0]
    run = Path(config["run"]["directory"])

    assert results[0] == {"step": 0, "samples": 0}
    entries = [json.loads(line) for line in (run / "some" / "metrics.jsonl").read_text().splitlines()]
    seed = config["training"].get("seed", 1234)
    skipped = []
    for entry in entries:
        drawn = [sample_index(consumed, SAMPLES, seed) for consumed in range(entry["samples"] - 2, entry["samples"])]
        is_empty = all(sample >= SAMPLES // 4 for sample in drawn)
        assert (entry["loss"] is None) == is_empty
        if is_empty:
            assert entry["skipped"] == "its samples have no targets"
        else:
            assert entry["loss"] > 1
            assert "skipped" not in entry
        skipped.append(is_empty)
    assert 0 < sum(skipped) < STEPS
    assert entries[-1]["validation_loss"] > 1
    last = json.loads((run / "some" / "checkpoints" / f"step-{STEPS:08d}" / "state.json").read_text())
    assert last["updates"] == STEPS - sum(skipped)
    assert "its samples have no targets; the step is skipped" in (tmp_path / "workers" / "rank0.log").read_text()

    assert "its samples have no targets. That makes 4 skipped steps in a row" in results[1]["error"]
    assert "check data.samples and data.prompt_end" in results[1]["error"]
    assert results[1]["error"].startswith("DataError")
    assert f"the evaluation after step {STEPS}: the 8 validation samples of a corpus have no targets" in results[2]["error"]
