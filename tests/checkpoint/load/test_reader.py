"""Reading checkpoints: slices, averages, models and state, with the fixture of tests/compatibility."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from megatape.checkpoint.format.manifest import load_manifest, save_manifest
from megatape.checkpoint.format.records import FileRecord
from megatape.checkpoint.load.reader import CheckpointReader, EmaReader, verified_checkpoint
from megatape.hf.weights.checkpoint_weights import load_model

FIXTURE = Path(__file__).parents[2] / "compatibility" / "fixtures" / "run" / "checkpoints" / "step-00000004"
AVERAGED = Path(__file__).parents[2] / "compatibility" / "fixtures" / "averages" / "step-00000002"
MATRIX = "blocks.0.mlp.up.weight"
VECTOR = "norm.weight"


@pytest.fixture(scope="module")
def checkpoint() -> CheckpointReader:
    return CheckpointReader(FIXTURE)


@pytest.mark.parametrize("kind", ["weight", "exp_avg", "exp_avg_sq"])
def test_rows_and_columns_of_a_matrix_are_read(checkpoint: CheckpointReader, kind: str) -> None:
    rows, columns = tuple(checkpoint.tensor(MATRIX).shape)
    matrix = checkpoint.read(kind, MATRIX, (rows, columns), slice(0, rows), slice(0, columns))
    assert matrix.shape == (rows, columns)
    block = checkpoint.read(kind, MATRIX, (rows, columns), slice(3, 7), slice(2, 5))
    assert torch.equal(block, matrix[3:7, 2:5])


def test_a_vector_is_read_as_a_matrix_of_one_column(checkpoint: CheckpointReader) -> None:
    (size,) = checkpoint.tensor(VECTOR).shape
    vector = checkpoint.read("weight", VECTOR, (size,), slice(1, 4), slice(0, 1))
    assert torch.equal(vector, checkpoint.tensor(VECTOR)[1:4, None])


def test_no_file_stays_open(checkpoint: CheckpointReader) -> None:
    """Pages read through a file that stays mapped would count as memory of the process while it loads a large model."""
    checkpoint.tensor(MATRIX)
    checkpoint.read("exp_avg", VECTOR, tuple(checkpoint.tensor(VECTOR).shape), slice(1, 4), slice(0, 1))
    mapped = Path("/proc/self/maps").read_text()
    assert str(FIXTURE) not in mapped


class Block(NamedTuple):
    """Arguments of `read` that select a block of a matrix."""

    name: str
    shape: tuple[int, ...]
    rows: slice
    columns: slice


@pytest.fixture
def block() -> Block:
    shape = tuple(CheckpointReader(AVERAGED).tensor(MATRIX).shape)
    return Block(MATRIX, shape, slice(3, 7), slice(2, 5))


def test_an_ema_reader_reads_averages_as_weights(block: Block) -> None:
    checkpoint = EmaReader(AVERAGED)
    average = checkpoint.tensor(MATRIX)
    assert torch.equal(checkpoint.read("weight", *block), average[3:7, 2:5])
    assert torch.equal(checkpoint.read("ema", *block), average[3:7, 2:5])


def test_a_reader_of_averages_reads_weights_and_averages(block: Block) -> None:
    checkpoint = CheckpointReader(AVERAGED)
    weight = checkpoint.tensor(MATRIX)
    average = EmaReader(AVERAGED).tensor(MATRIX)
    assert not torch.equal(weight, average)
    assert torch.equal(checkpoint.read("weight", *block), weight[3:7, 2:5])
    assert torch.equal(checkpoint.read("ema", *block), average[3:7, 2:5])


def test_a_tensor_of_another_shape_is_refused(checkpoint: CheckpointReader) -> None:
    rows, columns = tuple(checkpoint.tensor(MATRIX).shape)
    with pytest.raises(ValueError, match=f"{MATRIX} has shape .* the model's is"):
        checkpoint.read("weight", MATRIX, (rows + 1, columns), slice(0, 1), slice(0, 1))


@pytest.mark.parametrize("kind, name", [("weight", "other"), ("momentum_buffer", MATRIX)])
def test_a_missing_tensor_is_refused(checkpoint: CheckpointReader, kind: str, name: str) -> None:
    shape = tuple(checkpoint.tensor(MATRIX).shape)
    with pytest.raises(ValueError, match=f"no {kind} of {name}"):
        checkpoint.read(kind, name, shape, slice(0, 1), slice(0, 1))


def test_only_ranks_of_the_run_have_a_generator_state(checkpoint: CheckpointReader) -> None:
    assert checkpoint.rng_state(0) is not None
    assert checkpoint.rng_state(1) is None


def test_a_model_has_the_weights_of_its_checkpoint(checkpoint: CheckpointReader) -> None:
    weights = dict(load_model(checkpoint).named_parameters())
    assert set(weights) == set(checkpoint.names())
    for name, weight in weights.items():
        assert torch.equal(weight, checkpoint.tensor(name)), name


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the checkpoint, to damage."""
    return shutil.copytree(FIXTURE, tmp_path / "step-00000004")


def test_a_valid_checkpoint_is_verified(copy: Path) -> None:
    assert verified_checkpoint(copy).step == 4


def test_a_flipped_bit_fails_verification(copy: Path) -> None:
    file = copy / "exp_avg-00000.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    CheckpointReader(copy)  # sizes and state are as recorded
    with pytest.raises(ValueError, match=f"{file.name}: its sha256"):
        verified_checkpoint(copy)


def test_state_of_another_version_comes_back_complete(copy: Path) -> None:
    """A run gets back parts that this version does not know."""
    state = json.loads((copy / "state.json").read_text())
    manifest = load_manifest(copy)
    state |= {"later": {"any": [1, None]}, "guard": {"spikes": {"loss": [1.5]}, "momentum": 3}}
    text = json.dumps(state).encode()
    (copy / "state.json").write_bytes(text)
    files = manifest.files | {"state.json": FileRecord(bytes=len(text), sha256=hashlib.sha256(text).hexdigest())}
    save_manifest(copy, files, manifest.tensors)
    content = json.loads(json.dumps(CheckpointReader(copy).state.content()))
    assert content == {"updates": state["step"], **state}


def test_a_manifest_without_weights_is_refused(copy: Path) -> None:
    files = load_manifest(copy).files
    save_manifest(copy, files, {})
    with pytest.raises(ValueError, match="manifest.json is not a manifest of MegaTAPE: tensors has no weight"):
        CheckpointReader(copy)
