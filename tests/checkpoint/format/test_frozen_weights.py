"""Finding the base of a checkpoint after its folder moved. tests/end_to_end/test_base.py trains with a base."""

from pathlib import Path

import pytest
import torch

from megatape.checkpoint.format.frozen_weights import base_record, open_base
from megatape.checkpoint.format.hashed_files import hash_file
from megatape.checkpoint.format.records import BaseRecord, TensorRecord
from megatape.checkpoint.format.stored_weights import StoredWeights
from megatape.checkpoint.format.tensors import save_tensors
from megatape.errors import CheckpointError

WEIGHT = torch.arange(6.0).view(2, 3)
BIAS = torch.arange(3.0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a base, two of whose three weights are used, and a checkpoint."""
    project = tmp_path / "project"
    base = project / "base"
    base.mkdir(parents=True)
    (project / "run" / "step-1").mkdir(parents=True)
    save_tensors({"theirs": WEIGHT.bfloat16(), "bias": BIAS.bfloat16()}, base / "a.safetensors")
    save_tensors({"unused": BIAS}, base / "b.safetensors")
    return project


@pytest.fixture
def record(project: Path) -> BaseRecord:
    """Record of the used weights, as the checkpoint stores it."""
    base = project / "base"
    tensors = {
        "ours": TensorRecord(file="a.safetensors", name="theirs", shape=(2, 3)),
        "bias": TensorRecord(file="a.safetensors", name="bias", shape=(3,)),
        "unused": TensorRecord(file="b.safetensors", name="unused", shape=(3,)),
    }
    files = {path.name: hash_file(path) for path in base.iterdir()}
    weights = StoredWeights(base, tensors, files).restricted(["ours", "bias"])
    return base_record(weights, project / "run" / "step-1")


def test_weights_of_a_base_are_read_by_our_names(project: Path, record: BaseRecord) -> None:
    """Only files with used weights are needed."""
    assert record.files.keys() == {"a.safetensors"}
    (project / "base" / "b.safetensors").unlink()
    base = open_base(record, project / "run" / "step-1", None)
    assert base.directory == project / "base"
    assert torch.equal(base.tensor("ours"), WEIGHT)
    assert torch.equal(base.tensor("bias"), BIAS)
    assert torch.equal(base.read("weight", "ours", (2, 3), slice(1, 2), slice(0, 2)), WEIGHT[1:, :2])


def test_a_base_that_moved_with_its_checkpoint_is_found(project: Path, record: BaseRecord, tmp_path: Path) -> None:
    moved = project.rename(tmp_path / "elsewhere")
    base = open_base(record, moved / "run" / "step-1", None)
    assert base.directory == moved / "base"


def test_a_base_that_moved_alone_is_read_where_the_user_says(project: Path, record: BaseRecord, tmp_path: Path) -> None:
    checkpoint = project / "run" / "step-1"
    base = (project / "base").rename(tmp_path / "alone")
    with pytest.raises(CheckpointError, match=r"step-1 holds only what was trained. .* say where it is now with `base` DIR"):
        open_base(record, checkpoint, None)
    open_base(record, checkpoint, base).verify(0, 1)


def test_a_folder_without_the_files_of_the_base_is_refused(project: Path, record: BaseRecord, tmp_path: Path) -> None:
    base = (project / "base").rename(tmp_path / "alone")
    (base / "a.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"alone is not the base of .*: a.safetensors is not there"):
        open_base(record, project / "run" / "step-1", base)
