"""Files of an earlier version still work: fixtures/ has a data folder, a run and an export of commit 777fe0d.

fixtures/made_by.py.txt made them with that commit checked out. fixtures/earlier_data/ has its own script.
"""

import copy
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from megatape.checkpoint.load.reader import CheckpointReader, verified_checkpoint
from megatape.config import ModelConfig
from megatape.data.shards.index import load_index
from megatape.data.shards.reading.reader import SplitReader
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.data.training.datasets.token_dataset import TokenDataset
from megatape.data.training.mixing.order import sample_index
from megatape.hf.exporting.exporter import export
from megatape.hf.loading.load import load_exported
from megatape.model.build import meta_model
from megatape.model.init import initial_weight
from megatape.nn.targets import IGNORE_INDEX
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES

pytestmark = pytest.mark.numerics

FIXTURES = Path(__file__).parent / "fixtures"
DATA, RUN, EXPORT = FIXTURES / "data", FIXTURES / "run", FIXTURES / "export"
FIRST, LAST = RUN / "checkpoints" / "step-00000002", RUN / "checkpoints" / "step-00000004"
KINDS = ("weight", "exp_avg", "exp_avg_sq")
INITIAL: dict[str, dict[str, dict[str, Any]]] = json.loads((FIXTURES / "initial.json").read_text())


def test_a_data_folder_opens_and_verifies() -> None:
    index = load_index(DATA)
    for split in index.splits:
        assert sum(ids.size for ids in SplitReader(DATA, index, split).members()) == index.splits[split].tokens
    recorded = json.loads((FIRST / "state.json").read_text())["fingerprints"]
    dataset = TokenDataset(StoredSplit(DATA, "train"), 32)
    assert {"data": dataset.fingerprint, "tokenizer": dataset.split.tokenizer_hash} == recorded
    assert [sample_index(consumed, dataset.num_samples, 1234) for consumed in range(4)] == [130, 307, 88, 134]


def test_data_folders_of_versions_2_and_3() -> None:
    """With several shards and members, tokens are unchanged, and fingerprints are those that runs of that time resume by."""
    for name_and_split, (fingerprint, sha256) in json.loads((FIXTURES / "earlier_data" / "expected.json").read_text()).items():
        name, split = name_and_split.split()
        dataset = TokenDataset(StoredSplit(FIXTURES / "earlier_data" / name, split), 16)
        assert dataset.fingerprint == fingerprint, name_and_split
        stream = dataset.split.stream(0, dataset.split.num_tokens)
        assert hashlib.sha256(stream.astype("<u4").tobytes()).hexdigest() == sha256, name_and_split
    examples = ExampleDataset(StoredSplit(FIXTURES / "earlier_data" / "version-3", "train"), 64)
    assert (examples.sample(0).targets != IGNORE_INDEX).sum() == 1


def test_a_run_resumes(tmp_path: Path) -> None:
    """The checkpoint of step 2 resumes on the same topology, and repeats steps 3 and 4 of the earlier version."""
    raw = copy.deepcopy(json.loads((RUN / "config.json").read_text()))
    raw["data"]["path"], raw["run"]["directory"] = str(DATA), str(tmp_path)
    shutil.copytree(FIRST, tmp_path / "run" / "checkpoints" / FIRST.name)
    shutil.copyfile(RUN / "metrics.jsonl", tmp_path / "run" / "metrics.jsonl")
    payload = {"config": raw, "cases": [{"name": "run", "resume": "auto"}]}
    assert run_workers(TRAIN_CASES, 1, payload, tmp_path / "workers") == [[{"step": 2, "samples": 16}]]
    for kind in KINDS:
        file = f"{kind}-00000.safetensors"
        ours, theirs = load_file(tmp_path / "run" / "checkpoints" / LAST.name / file), load_file(LAST / file)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            if tensor.any():  # Moments are zero for the last layer's position update, read by nothing.
                assert_close(ours[name], tensor, bounds.TRAINED, what=(kind, name))
            else:
                assert not ours[name].any()
    found, recorded = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (tmp_path / "run", RUN)
    )
    for entry, expected in zip(found, recorded, strict=True):
        for key in ("step", "lr", "tokens", "samples"):
            assert entry[key] == expected[key]
        for key in ("loss", "grad_norm"):
            assert_close([entry[key]], [expected[key]], bounds.TRAINED, what=key)
    # The run keeps the first 8 of 31 validation samples. A new run would take 8 equally spaced ones.
    assert found[-1]["validation_selection"] == "first"
    assert_close([found[-1]["validation_loss"]], [recorded[-1]["validation_loss"]], bounds.TRAINED, what="validation loss")


def test_checkpoints_of_formats_4_and_5(tmp_path: Path) -> None:
    """A moving average and an average of checkpoints are verified, and continued by a run with the same decay."""
    averages = FIXTURES / "averages"
    saved, averaged = averages / "step-00000002", averages / "average"
    assert [verified_checkpoint(path).manifest.format for path in (saved, averaged)] == [4, 5]
    average = verified_checkpoint(averaged).state.average
    assert average is not None
    assert average.shares == [1 / 3, 2 / 3]
    config = json.loads((saved / "state.json").read_text())["config"] | {"run": {"directory": str(tmp_path)}}
    config["data"]["path"] = str(DATA)
    cases = [{"name": path.name, "resume": str(path), "set": {"training.steps": 3}} for path in (saved, averaged)]
    results = run_workers(TRAIN_CASES, 1, {"config": config, "cases": cases}, tmp_path / "workers")
    assert results[0] == [{"step": 2, "samples": 16}] * 2
    after = [load_file(tmp_path / path.name / "checkpoints/step-00000003/ema-00000.safetensors") for path in (saved, averaged)]
    weights = [
        load_file(tmp_path / path.name / "checkpoints/step-00000003/weight-00000.safetensors") for path in (saved, averaged)
    ]
    before = [load_file(saved / "ema-00000.safetensors"), load_file(averaged / "weight-00000.safetensors")]
    for ema, weight, earlier in zip(after, weights, before, strict=True):
        for name, tensor in ema.items():
            assert_close(tensor, (earlier[name] + weight[name]) / 2, bounds.EMA, floor=1e-12, what=name)


def test_an_export_loads() -> None:
    recorded = load_file(FIXTURES / "export-logits.safetensors")
    with torch.no_grad():
        logits = load_exported(EXPORT).model(input_ids=recorded["tokens"]).logits
    assert_close(logits, recorded["logits"], bounds.EXPORTED)


def test_a_checkpoint_exports_the_same_weights(tmp_path: Path) -> None:
    export(CheckpointReader(FIRST), tmp_path / "export")
    ours, theirs = load_file(tmp_path / "export" / "model.safetensors"), load_file(EXPORT / "model.safetensors")
    assert ours.keys() == theirs.keys()
    different = [name for name, tensor in theirs.items() if not torch.equal(ours[name], tensor)]
    assert different == []


@pytest.mark.parametrize("encoding", INITIAL)
def test_initial_weights_are_the_same(encoding: str) -> None:
    """Names, shapes and values are unchanged. Normal random numbers differ between processors in their last bits."""
    shape = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "num_kv_heads": 2, "mlp_size": 24, "vocab_size": 280}
    config = ModelConfig.model_validate(shape | {"encoding": encoding, "position_size": 6, "max_positions": 32})
    parameters = dict(meta_model(config).named_parameters())
    assert {name: list(parameter.shape) for name, parameter in parameters.items()} == {
        name: entry["shape"] for name, entry in INITIAL[encoding].items()
    }
    for name, entry in INITIAL[encoding].items():
        weight = initial_weight(name, parameters[name], 0.02, 1234)
        assert_close(weight.flatten()[:3].tolist(), entry["first"], bounds.INITIAL, floor=1e-12, what=name)
        sum_of_squares = float(weight.double().square().sum())
        assert_close([sum_of_squares], [entry["sum_of_squares"]], bounds.INITIAL, floor=1e-12, what=name)
