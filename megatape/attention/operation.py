"""Causal attention over the content and, where the encoding asks for it, the position state, by the
first backend that supports it.

Shapes as in model/transformer.py. `backends`: names in order of preference; None for all that are registered.
"""

from functools import cache

from torch import Tensor

from megatape.attention.backend import Attends, Backend, Need
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.errors import UserError
from megatape.registry import AUTO, BACKENDS

Backends = tuple[str, ...]


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None, backends: Backends | None = None
) -> Tensor:
    """Backend.attend by the first backend that supports the call."""
    attends: Attends = "plain" if bias is None else "distance bias" if isinstance(bias, DistanceBias) else "pair bias"
    return load(choose(_need(q, attends, document_starts), backends)).attend(q, k, v, bias, document_starts)


def attend_rotated(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial: Tensor,
    moved: Tensor | None,
    document_starts: Tensor | None,
    backends: Backends | None = None,
) -> Tensor:
    """Backend.attend_rotated by the first backend that supports the call."""
    backend = load(choose(_need(q, "plain", document_starts), backends))
    return backend.attend_rotated(q, k, v, initial, moved, document_starts)


def attend_and_move(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial: Tensor,
    moved: Tensor | None,
    document_starts: Tensor | None,
    backends: Backends | None = None,
) -> tuple[Tensor, Tensor]:
    """Backend.attend_and_move by the first backend that supports the call."""
    backend = load(choose(_need(q, "moving", document_starts), backends))
    return backend.attend_and_move(q, k, v, initial, moved, document_starts)


def by_preference(forced: str = AUTO) -> Backends:
    """All backends in order of preference, the one that training.attention forces before the others.

    The others too, because a single layer may need what the forced one does not support: the last one does not move the
    state."""
    return tuple(dict.fromkeys(name for name in (forced, *BACKENDS) if name != AUTO))


@cache
def choose(need: Need, backends: Backends | None = None) -> str:
    """Name of the backend that runs: the first that supports `need`. Raises UserError if none does."""
    for name in by_preference() if backends is None else backends:
        if load(name).refusal(need) is None:
            return name
    raise UserError(f"no attention backend of {', '.join(backends or BACKENDS)} supports {need}")


def check(need: Need, forced: str) -> None:
    """Raise UserError if the backend that training.attention forces does not support what the encoding needs."""
    if forced == AUTO or (refusal := load(forced).refusal(need)) is None:
        return
    able = ", ".join(name for name in BACKENDS if load(name).refusal(need) is None)
    raise UserError(f"training.attention is {forced}, which {refusal}: choose {AUTO}, or one of {able}")


@cache
def load(name: str) -> Backend:
    """The backend registered as `name`."""
    backend: Backend = BACKENDS[name].load()()
    return backend


def _need(q: Tensor, attends: Attends, document_starts: Tensor | None) -> Need:
    return Need(q.device.type, attends, q.shape[-1], q.dtype, document_starts is not None)
