"""Tensors on the meta device: shapes and types without memory."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_shapes(precision: str) -> Iterator[None]:
    """Create tensors without memory inside the block, by default in a precision such as "bfloat16"."""
    with in_precision(precision), torch.device("meta"):
        yield


@contextmanager
def in_precision(precision: str) -> Iterator[None]:
    """Set the default precision inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, precision))
    try:
        with warnings.catch_warnings():
            # The collectives have the names of the oldest supported torch. Newer versions warn about them.
            warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
            yield
    finally:
        torch.set_default_dtype(before)
