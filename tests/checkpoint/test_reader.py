"""Reading of checkpoints, with the fixture of tests/compatibility."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from megatape.checkpoint.manifest import load_manifest, save_manifest
from megatape.checkpoint.reader import CheckpointReader, EmaReader, verified_checkpoint
from megatape.checkpoint.records import FileRecord
from megatape.hf.weights.checkpoint_weights import load_model

FIXTURE = Path(__file__).parents[1] / "compatibility" / "fixtures" / "run" / "checkpoints" / "step-00000004"
AVERAGED = Path(__file__).parents[1] / "compatibility" / "fixtures" / "averages" / "step-00000002"
MATRIX = "blocks.0.mlp.up.weight"
VECTOR = "norm.weight"


@pytest.fixture(scope="module")
def checkpoint() -> CheckpointReader:
    return CheckpointReader(FIXTURE)


@pytest.mark.parametrize("kind", ["weight", "exp_avg", "exp_avg_sq"])
def test_slices(checkpoint: CheckpointReader, kind: str) -> None:
    """Rows and columns of a matrix; a vector is a matrix of one column."""
    rows, columns = tuple(checkpoint.tensor(MATRIX).shape)
    whole = checkpoint.read(kind, MATRIX, (rows, columns), slice(0, rows), slice(0, columns))
    assert whole.shape == (rows, columns)
    part = checkpoint.read(kind, MATRIX, (rows, columns), slice(3, 7), slice(2, 5))
    assert torch.equal(part, whole[3:7, 2:5])
    (size,) = checkpoint.tensor(VECTOR).shape
    vector = checkpoint.read("weight", VECTOR, (size,), slice(1, 4), slice(0, 1))
    assert torch.equal(vector, checkpoint.tensor(VECTOR)[1:4, None])


def test_moving_average() -> None:
    """Whole or in part, a weight is read as its average."""
    checkpoint = EmaReader(AVERAGED)
    raw = CheckpointReader(AVERAGED)
    average = checkpoint.tensor(MATRIX)
    rows, columns = average.shape
    block = (MATRIX, (rows, columns), slice(3, 7), slice(2, 5))
    assert torch.equal(checkpoint.read("weight", *block), average[3:7, 2:5])
    assert torch.equal(checkpoint.read("ema", *block), average[3:7, 2:5])
    assert torch.equal(raw.read("ema", *block), average[3:7, 2:5])
    assert torch.equal(raw.read("weight", *block), raw.tensor(MATRIX)[3:7, 2:5])
    assert not torch.equal(raw.tensor(MATRIX), average)


def test_missing_tensors(checkpoint: CheckpointReader) -> None:
    rows, columns = tuple(checkpoint.tensor(MATRIX).shape)
    with pytest.raises(ValueError, match=f"{MATRIX} has shape .* the model's is"):
        checkpoint.read("weight", MATRIX, (rows + 1, columns), slice(0, 1), slice(0, 1))
    for kind, name in (("weight", "other"), ("momentum_buffer", MATRIX)):
        with pytest.raises(ValueError, match=f"no {kind} of {name}"):
            checkpoint.read(kind, name, (rows, columns), slice(0, 1), slice(0, 1))
    assert checkpoint.rng_state(0) is not None
    assert checkpoint.rng_state(1) is None


def test_model(checkpoint: CheckpointReader) -> None:
    weights = dict(load_model(checkpoint).named_parameters())
    assert set(weights) == set(checkpoint.names())
    assert all(torch.equal(weight, checkpoint.tensor(name)) for name, weight in weights.items())


def test_verified_checkpoint(tmp_path: Path) -> None:
    copy = tmp_path / "step-00000004"
    shutil.copytree(FIXTURE, copy)
    assert verified_checkpoint(copy).step == 4
    file = copy / "exp_avg-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    CheckpointReader(copy)  # sizes and state are as recorded
    with pytest.raises(ValueError, match=f"{file.name}: its sha256"):
        verified_checkpoint(copy)


def test_state_of_another_version(tmp_path: Path) -> None:
    """A run gets back the whole state, including parts that this version does not know."""
    copy = tmp_path / "step-00000004"
    shutil.copytree(FIXTURE, copy)
    state = json.loads((copy / "state.json").read_text())
    manifest = load_manifest(copy)
    state |= {"later": {"any": [1, None]}, "guard": {"spikes": {"loss": [1.5]}, "momentum": 3}}
    text = json.dumps(state).encode()
    (copy / "state.json").write_bytes(text)
    files = manifest.files | {"state.json": FileRecord(bytes=len(text), sha256=hashlib.sha256(text).hexdigest())}
    save_manifest(copy, files, manifest.tensors)
    assert json.loads(json.dumps(CheckpointReader(copy).state.content())) == {"updates": state["step"], **state}


def test_a_manifest_without_weights(tmp_path: Path) -> None:
    copy = tmp_path / "step-00000004"
    shutil.copytree(FIXTURE, copy)
    files = load_manifest(copy).files
    save_manifest(copy, files, {})
    with pytest.raises(ValueError, match="manifest.json: no manifest of MegaTAPE: tensors has no weight"):
        CheckpointReader(copy)
