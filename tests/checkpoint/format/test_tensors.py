"""Writing safetensors files: the same bytes as the library, and hashes of the given content."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from megatape.checkpoint.format.records import FileRecord
from megatape.checkpoint.format.tensors import save_tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8])
def test_the_library_writes_the_same_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    content = {
        "b": torch.arange(6).reshape(2, 3).to(dtype),
        "a.ü": torch.ones(3, dtype=dtype),
        "none": torch.ones(0, 2, dtype=dtype),
    }
    content["one"] = content["b"][1, 2].clone()
    record = save_tensors(content, tmp_path / "file")
    written = (tmp_path / "file").read_bytes()
    assert written == save(content, metadata={"format": "pt"})
    assert record == FileRecord(bytes=len(written), sha256=hashlib.sha256(written).hexdigest())
    loaded = load_file(tmp_path / "file")
    assert loaded.keys() == content.keys()
    for name, tensor in loaded.items():
        assert torch.equal(tensor, content[name]), name


def test_a_file_altered_while_it_is_written_has_another_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded hash is that of the given tensors, so verification finds the altered file."""
    path = tmp_path / "file"
    expected = save_tensors({"a": torch.ones(3)}, path)
    correct = path.read_bytes()

    def alter(descriptor: int) -> None:
        os.pwrite(descriptor, b"\xff", 0)

    path.unlink()
    monkeypatch.setattr(os, "fsync", alter)
    assert save_tensors({"a": torch.ones(3)}, path) == expected
    assert path.read_bytes() != correct
