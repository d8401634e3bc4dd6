"""The Remat that the layers of an encoding share without being passed it.

An encoding reads the input of attention through an interface of plain tensors (encodings/encoding.py: TokenFeatures), which
users implement, too. Inside `shared_with_layers` its linear layers find the input's Remat here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from megatape.nn.remat.remat import Remat

_shared: ContextVar[Remat | None] = ContextVar("shared", default=None)


@contextmanager
def shared_with_layers(remat: Remat | None) -> Iterator[None]:
    """Let layers inside the block use this Remat for the tensor that it rebuilds."""
    token = _shared.set(remat)
    try:
        yield
    finally:
        _shared.reset(token)


def matching_remat(x: Tensor, passed: Remat | None) -> Remat | None:
    """Return the Remat of x: the one that the caller passed, or else the shared one; None if that rebuilds another tensor."""
    if torch.compiler.is_compiling():
        return None
    candidate = passed or _shared.get()
    if candidate is None:
        return None
    return candidate.matching(x)
