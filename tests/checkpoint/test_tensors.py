"""Our own safetensors files."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from megatape.checkpoint.records import FileRecord
from megatape.checkpoint.tensors import save_tensors


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
