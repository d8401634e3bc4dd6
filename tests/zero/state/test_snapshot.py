"""Copies in host memory for checkpoints written in the background."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from megatape.zero.state.snapshot import ALIGNMENT, HostCopies

SIZES = {
    "large": (1000, torch.float32),
    "none": (0, torch.float32),
    "frozen": (33, torch.bfloat16),
    "small": (1, torch.float32),
}


def test_copies_take_the_planned_bytes() -> None:
    """Copies share one block of memory. Blocks of powers of two, which torch pins, would take up to twice the bytes."""
    tensors = [torch.randn(size).to(dtype) for size, dtype in SIZES.values()]
    copies = HostCopies(tensors).tensors
    for tensor, copy in zip(tensors, copies, strict=True):
        copy.copy_(tensor)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert torch.equal(tensor, copy), "copies overlap"
    storages = [copy.untyped_storage() for copy in copies]
    assert len({storage.data_ptr() for storage in storages}) == 1
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    assert storages[0].nbytes() >= num_bytes
    assert storages[0].nbytes() < num_bytes + ALIGNMENT * len(tensors)


@pytest.mark.parametrize("status", [0, 2])
def test_memory_is_pinned_until_it_is_dropped(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Copies of tensors on a GPU are pinned. Exceeding a limit on locked memory is an error, not a slow copy."""
    tensors = []
    for size, dtype in SIZES.values():
        tensors.append(SimpleNamespace(nbytes=size * dtype.itemsize, dtype=dtype, is_cuda=True))
    check_error = Mock()
    runtime = Mock()
    runtime.cudaHostRegister.return_value = status
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    copies = HostCopies(tensors)  # type: ignore[arg-type]
    storage = copies.tensors[0].untyped_storage()
    runtime.cudaHostRegister.assert_called_once_with(storage.data_ptr(), storage.nbytes(), 0)
    check_error.assert_called_once_with(status)
    assert [copy.numel() for copy in copies.tensors] == [size for size, _ in SIZES.values()]

    runtime.cudaHostUnregister.assert_not_called()
    del copies
    runtime.cudaHostUnregister.assert_called_once_with(storage.data_ptr())


def test_rank_without_copies_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses to register zero bytes. Other tensor-parallel ranks contribute the rank's pieces."""
    monkeypatch.setattr(torch.cuda, "cudart", lambda: pytest.fail("pinned"))
    empty = SimpleNamespace(nbytes=0, dtype=torch.float32, is_cuda=True)
    assert [copy.numel() for copy in HostCopies([empty]).tensors] == [0]  # type: ignore[list-item]
