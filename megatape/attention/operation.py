"""Causal attention over the content and, where the encoding asks for it, the position state, by the
first backend that supports it.

Shapes as in model/transformer.py.
"""

from functools import cache

from torch import Tensor

from megatape.attention.backend import Attends, Backend, Need
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.registry import AUTO, BACKENDS


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None, preferred: str = AUTO
) -> Tensor:
    """Backend.attend by `preferred` if it supports the call, else by the first backend that does."""
    attends: Attends = "plain" if bias is None else "distance bias" if isinstance(bias, DistanceBias) else "pair bias"
    return load(choose(_need(q, attends, document_starts), preferred)).attend(q, k, v, bias, document_starts)


def attend_and_move(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial: Tensor,
    moved: Tensor | None,
    document_starts: Tensor | None,
    preferred: str = AUTO,
) -> tuple[Tensor, Tensor]:
    """Backend.attend_and_move by `preferred` if it supports the call, else by the first backend that does."""
    backend = load(choose(_need(q, "moving", document_starts), preferred))
    return backend.attend_and_move(q, k, v, initial, moved, document_starts)


@cache
def choose(need: Need, preferred: str = AUTO) -> str:
    """Name of the backend that runs: `preferred` if it supports `need`, else the first in the registry that does.

    `preferred` may be the wrong one for a single layer: the last one does not move the state."""
    names = list(BACKENDS) if preferred == AUTO else [preferred, *BACKENDS]
    return next(name for name in names if load(name).refusal(need) is None)


def check(need: Need, forced: str) -> None:
    """Raise ValueError if the backend that training.attention forces does not support what the encoding needs."""
    if forced == AUTO or (refusal := load(forced).refusal(need)) is None:
        return
    able = ", ".join(name for name in BACKENDS if load(name).refusal(need) is None)
    raise ValueError(f"training.attention is {forced}, which {refusal}: choose {AUTO}, or one of {able}")


@cache
def load(name: str) -> Backend:
    """The backend registered as `name`."""
    backend: Backend = BACKENDS[name].load()()
    return backend


def _need(q: Tensor, attends: Attends, document_starts: Tensor | None) -> Need:
    return Need(q.device.type, attends, q.shape[-1], q.dtype, document_starts is not None)
