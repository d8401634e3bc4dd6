"""The attention of all models: one function, and the choice of the backend that computes it.

Shapes as in model/transformer.py; W is the width of the position tensor e.
"""

from collections.abc import Callable
from functools import cache

import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, Backend, BiasKind, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.rotation import PositionState
from megatape.errors import UserError
from megatape.registry import AUTO, BACKENDS

Backends = tuple[str, ...]
Attend = Callable[..., tuple[Tensor, Tensor | None]]  # `attend`, or a function with its arguments


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: PositionState | None = None,
    bias: ScoreBias | None = None,
    document_starts: DocumentStarts = None,
    move: bool = False,
    backends: Backends | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Causal attention by the first backend that supports the call.

    Args:
        q: Queries [B, N, H, R]; an encoding may make queries and keys wider than values.
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        state: e [B, N, L, W], by which queries and keys are rotated.
        bias: What is added to the scores.
        document_starts: [B, N], the first token that each token may see (packed documents); None: every token sees the first.
        move: Whether e is averaged with the same weights as the values.
        backends: Names in order of preference; None for the choice of `auto`.

    Returns:
        A v [B, N, H, R] and, with `move`, A e [B, N, H, W], in the dtype of v.
    """
    kind: BiasKind = "none" if bias is None else "distance" if isinstance(bias, DistanceBias) else "pair"
    device = "cuda" if q.is_meta else q.device.type  # shapes alone stand for a GPU's tensors
    need = AttentionRequirements(device, move, kind, q.shape[-1], q.dtype, document_starts is not None)
    backend = get_backend(select_backend(need, backends))
    extra = q.shape[-1] - v.shape[-1]
    if not extra:
        return backend.attend(q, k, v, state, bias, document_starts, move)
    content, _ = backend.attend(q, k, F.pad(v, (0, extra)), state, bias, document_starts, move)  # for kernels of one width
    return content[..., :-extra], None


def backends_by_priority(forced: str, need: AttentionRequirements | None = None) -> Backends:
    """All backends in order of preference, the one that training.attention forces, or `auto` prefers, before the others.

    The others too, because a single layer may need what the first one does not support: the last one does not move the
    state. need: what most layers need; `auto` chooses by it, and no other value reads it.
    """
    if forced != AUTO:
        return tuple(dict.fromkeys((forced, *BACKENDS)))
    assert need is not None
    return tuple(sorted(BACKENDS, key=lambda name: not get_backend(name).is_preferred_for(need)))


@cache
def select_backend(need: AttentionRequirements, backends: Backends | None = None) -> str:
    """Name of the backend that runs: the first that supports `need`. Raises UserError if none does."""
    for name in backends_by_priority(AUTO, need) if backends is None else backends:
        if get_backend(name).unsupported_reason(need) is None:
            return name
    raise UserError(f"no attention backend of {', '.join(backends or BACKENDS)} supports {need}")


def check_forced_backend(need: AttentionRequirements, forced: str, encoding: str) -> None:
    """Raise UserError if the backend that training.attention forces does not support what the encoding needs."""
    if forced == AUTO or (reason := get_backend(forced).unsupported_reason(need)) is None:
        return
    able = ", ".join(name for name in BACKENDS if get_backend(name).unsupported_reason(need) is None)
    raise UserError(f"training.attention is {forced}, which {reason} (encoding {encoding}): choose {AUTO}, or one of {able}")


@cache
def get_backend(name: str) -> Backend:
    """The backend registered as `name`."""
    return BACKENDS[name].load()()
