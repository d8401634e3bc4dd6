"""Runs on mixtures: what they report of each corpus, and which changes of the weights a resumed run may make."""

from pathlib import Path
from typing import Any

import pytest

from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.mixing.schedule import Phase, Schedule
from megatape.run_folder import RunFolder
from tests.helpers.runs.case_runs import run_cases
from tests.helpers.runs.run_folders import read_entries
from tests.helpers.runs.small_run import small_config

LENGTH = 32
SAMPLES_PER_STEP = 8
TOKENS_OF_FIRST_RUN = 4 * SAMPLES_PER_STEP * LENGTH
ANNEALING = {"tokens": TOKENS_OF_FIRST_RUN, "weights": {"rare": 1, "often": 0}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixture")


@pytest.fixture(scope="module")
def results(data_directory: Path, root: Path) -> dict[str, dict[str, Any]]:
    """Train on the usual data twice, once with a third of the weight, then resume the run with several changes."""
    config = small_config(data_directory, root / "run")
    del config["data"]["path"]
    mixture = {
        "rare": {"path": str(data_directory), "weight": 0.5, "max_epochs": 1},
        "often": {"path": str(data_directory), "weight": 1},
    }
    config["data"]["mixture"] = mixture
    config["evaluation"]["interval"] = 2
    equal_weights = {name: corpus | {"weight": 1} for name, corpus in mixture.items()}
    resumed: dict[str, dict[str, Any]] = {
        "annealed": {"training.steps": 6, "data.annealing": [ANNEALING]},
        "other weights": {"data.mixture": equal_weights},
        "earlier annealing": {"data.annealing": [ANNEALING | {"tokens": TOKENS_OF_FIRST_RUN - 1}]},
        "too many steps": {"training.steps": 10**4},
    }
    checkpoint = str(RunFolder(root / "run" / "mixed").checkpoint(4))
    cases: list[dict[str, Any]] = [{"name": "mixed"}]
    cases += [{"name": name, "resume": checkpoint, "set": changes} for name, changes in resumed.items()]
    results = run_cases(config, cases, 2, root / "workers")
    return dict(zip(["mixed", *resumed], results, strict=True))


def test_a_run_reports_each_corpus(results: dict[str, dict[str, Any]], root: Path) -> None:
    """Counts of samples follow the weights, also after the start of annealing."""
    assert results["mixed"] == {"step": 0, "samples": 0}
    assert results["annealed"] == {"step": 4, "samples": 32}
    entries = []
    for name in ("mixed", "annealed"):
        entries += read_entries(root / "run" / name / "metrics.jsonl")

    schedule = Schedule([Phase(0, [2, 1]), Phase(32, [0, 1])])
    for step, entry in enumerate(entries, start=1):
        expected_often, expected_rare = schedule.counts(SAMPLES_PER_STEP * step)
        assert entry["corpora"] == {"often": expected_often, "rare": expected_rare}
    assert len(entries) == 6


def test_a_run_evaluates_each_corpus(results: dict[str, dict[str, Any]], root: Path) -> None:
    entries = read_entries(root / "run" / "mixed" / "metrics.jsonl")
    entries += read_entries(root / "run" / "annealed" / "metrics.jsonl")

    evaluated = [entry for entry in entries if "validation_losses" in entry]
    assert [entry["step"] for entry in evaluated] == [2, 4, 6]
    for entry in evaluated:
        losses = entry["validation_losses"]
        assert list(losses) == ["often", "rare"]
        # Both corpora have the same text.
        assert list(losses.values()) == pytest.approx([entry["validation_loss"]] * 2, rel=1e-6)
    console = (root / "workers" / "rank0.log").read_text()
    assert "validation loss" in console
    assert "often" in console


def test_weights_of_past_tokens_cannot_change(results: dict[str, dict[str, Any]]) -> None:
    error = results["other weights"]["error"]
    assert "trained with data.mixture.rare.weight 0.5, the configuration says 1" in error

    error = results["earlier annealing"]["error"]
    assert "has seen 1,024 tokens with these changes of the weights: none; data.annealing says" in error


def test_the_maximum_number_of_epochs_is_checked(results: dict[str, dict[str, Any]], data_directory: Path) -> None:
    num_samples = TokenDataset(StoredSplit(data_directory, "train"), LENGTH).num_samples
    error = results["too many steps"]["error"]
    assert f"epochs of its {num_samples:,}, and max_epochs is 1, which ends in step" in error
