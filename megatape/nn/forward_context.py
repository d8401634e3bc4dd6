"""Context of the running forward pass, for layers that cannot get it as arguments: the package's only context variable.

Users write modules between the model and these layers, and encodings' modules only take and return plain tensors
(encodings/encoding.py), so arguments for the layers inside would end there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, NamedTuple

from megatape.nn.dropout import NO_DROPOUT, Samples
from megatape.nn.remat.remat import Remat


class ForwardContext(NamedTuple):
    """Context of the running forward pass.

    Attributes:
        samples: Samples that dropout is drawn for.
        shared_remat: Recipe by which an encoding's linear layers rebuild the input of attention in the backward pass; or None.
        is_recomputed: Whether this code runs inside `recompute` (nn/remat/recompute.py). Tensors of its second run only live
            until the backward pass right after it, so rebuilding them once more would save nothing.
        saves_everything: Whether `recompute` lets autograd save all tensors instead: faster if memory suffices.
    """

    samples: Samples = NO_DROPOUT
    shared_remat: Remat | None = None
    is_recomputed: bool = False
    saves_everything: bool = False


_DEFAULT = ForwardContext()
_current: ContextVar[ForwardContext] = ContextVar("forward_context", default=_DEFAULT)


def forward_context() -> ForwardContext:
    """Return the context of the running forward pass."""
    return _current.get()


@contextmanager
def changed_context(**changes: Any) -> Iterator[None]:
    """Change fields of the ForwardContext inside the `with` block."""
    token = _current.set(forward_context()._replace(**changes))
    try:
        yield
    finally:
        _current.reset(token)


def context_for_recomputation() -> Context:
    """Return a copy of the present context variables, including users' own, in which code counts as recomputed."""
    context = copy_context()
    context.run(_current.set, forward_context()._replace(is_recomputed=True))
    return context
