"""Folder of a checkpoint's base. tests/end_to_end/test_base.py trains with one."""

from pathlib import Path

import pytest
import torch

from megatape.checkpoint.base import base_record, open_base
from megatape.checkpoint.hashed_files import hash_file
from megatape.checkpoint.records import TensorRecord
from megatape.checkpoint.tensors import StoredWeights, save_tensors
from megatape.errors import CheckpointError

WEIGHT = torch.arange(6.0).view(2, 3)
BIAS = torch.arange(3.0)


@pytest.fixture
def weights(tmp_path: Path) -> StoredWeights:
    folder = tmp_path / "project" / "base"
    folder.mkdir(parents=True)
    save_tensors({"theirs": WEIGHT.bfloat16(), "bias": BIAS.bfloat16()}, folder / "a.safetensors")
    save_tensors({"unused": BIAS}, folder / "b.safetensors")
    tensors = {
        "ours": TensorRecord(file="a.safetensors", name="theirs", shape=(2, 3)),
        "bias": TensorRecord(file="a.safetensors", name="bias", shape=(3,)),
        "unused": TensorRecord(file="b.safetensors", name="unused", shape=(3,)),
    }
    files = {path.name: hash_file(path) for path in folder.iterdir()}
    return StoredWeights(folder, tensors, files).restricted(["ours", "bias"])


def test_the_folder_is_found(weights: StoredWeights, tmp_path: Path) -> None:
    """Where it was; where it is seen from the checkpoint, if both were moved; where the user says. Only used files matter."""
    checkpoint = tmp_path / "project" / "run" / "step-1"
    checkpoint.mkdir(parents=True)
    record = base_record(weights, checkpoint)
    assert record.files.keys() == {"a.safetensors"}
    (weights.directory / "b.safetensors").unlink()
    base = open_base(record, checkpoint, None)
    assert base.directory == weights.directory
    assert torch.equal(base.tensor("ours"), WEIGHT)
    assert torch.equal(base.tensor("bias"), BIAS)
    assert torch.equal(base.read("weight", "ours", (2, 3), slice(1, 2), slice(0, 2)), WEIGHT[1:, :2])

    moved = (tmp_path / "project").rename(tmp_path / "elsewhere")
    assert open_base(record, moved / "run" / "step-1", None).directory == moved / "base"
    alone = (moved / "base").rename(tmp_path / "alone")
    with pytest.raises(CheckpointError, match=r"step-1 holds only what was trained. .* say where it is now with --base DIR"):
        open_base(record, moved / "run" / "step-1", None)
    open_base(record, moved / "run" / "step-1", alone).verify(0, 1)
    (alone / "a.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"alone is not the base of .*: a.safetensors is not there"):
        open_base(record, moved / "run" / "step-1", alone)
