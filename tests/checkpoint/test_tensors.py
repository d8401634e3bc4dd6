"""Our safetensors files, and where the folder of a checkpoint's base is found, which tests/end_to_end/test_base.py runs."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from megatape.checkpoint.manifest import BaseRecord, FileRecord, TensorRecord, describe
from megatape.checkpoint.tensors import StoredWeights, describe_base, open_base, save_tensors
from megatape.errors import CheckpointError

WEIGHT, BIAS = torch.arange(6.0).view(2, 3), torch.arange(3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
def test_the_library_writes_the_same_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    content = {
        "b": torch.arange(6).reshape(2, 3).to(dtype),
        "a.ü": torch.ones(3, dtype=dtype),
        "none": torch.ones(0, 2, dtype=dtype),
    }
    content["one"] = content["b"][1, 2].clone()
    described = save_tensors(content, tmp_path / "file")
    written = (tmp_path / "file").read_bytes()
    assert written == save(content, metadata={"format": "pt"})
    assert described == {"bytes": len(written), "sha256": hashlib.sha256(written).hexdigest()}
    assert all(torch.equal(tensor, content[name]) for name, tensor in load_file(tmp_path / "file").items())


def test_what_was_altered_while_it_was_written_is_not_blessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is of what was given."""
    path = tmp_path / "file"
    expected = save_tensors({"a": torch.ones(3)}, path)
    good = path.read_bytes()

    def altered(descriptor: int) -> None:
        os.pwrite(descriptor, b"\xff", 0)

    path.unlink()
    monkeypatch.setattr(os, "fsync", altered)
    assert save_tensors({"a": torch.ones(3)}, path) == expected
    assert path.read_bytes() != good


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
    files = {path.name: FileRecord(**describe(path)) for path in folder.iterdir()}
    return StoredWeights(folder, tensors, files).restricted(["ours", "bias"])


def test_the_folder_is_found(weights: StoredWeights, tmp_path: Path) -> None:
    """Where it was; where it is seen from the checkpoint, if both were moved; where the user says. Only used files matter."""
    checkpoint = tmp_path / "project" / "run" / "step-1"
    checkpoint.mkdir(parents=True)
    record = BaseRecord.model_validate(describe_base(weights, checkpoint))
    assert record.files.keys() == {"a.safetensors"}
    (weights.directory / "b.safetensors").unlink()
    base = open_base(record, checkpoint, None)
    assert base.directory == weights.directory
    assert torch.equal(base.tensor("ours"), WEIGHT) and torch.equal(base.tensor("bias"), BIAS)
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
