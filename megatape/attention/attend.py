"""Causal attention, and the selection of its backend. Shapes as in model/transformer.py."""

from functools import cache
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, Backend, BiasKind, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.fused_rotation import RotatingBackend
from megatape.attention.rotation import PositionState
from megatape.errors import UserError
from megatape.registry import AUTO, BACKENDS

# Names of backends in order of preference
Backends = tuple[str, ...]


class Attend(Protocol):
    """Function computing attention: `attend`, or a replacement in a model."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        moves_state: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute causal attention. Arguments and results as in `attend`."""
        ...


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: PositionState | None = None,
    bias: ScoreBias | None = None,
    document_starts: DocumentStarts = None,
    moves_state: bool = False,
    backends: Backends | None = None,
    rotation_by_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute causal attention by the first backend supporting the call.

    Args:
        q: Queries [B, N, H, R]. Encodings may make queries and keys wider than values.
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        state: Position tensor e for rotating queries and keys, [B, N, L, W], or None.
        bias: Bias on the scores, or None.
        document_starts: Index of the first token in each token's document, [B, N], or None without packed documents.
        moves_state: Whether to average e with the same weights as the values.
        backends: Names of backends in order of preference. None for the order of `auto`.
        rotation_by_kernel: Whether our own Triton kernels rotate queries and keys before PyTorch's attention, where they can.

    Returns:
        A v [B, N, H, R], and A e [B, N, H, W] or None without `moves_state`, in the dtype of v.

    Raises:
        UserError: No backend supports the call.
    """
    device_type = q.device.type
    if q.is_meta:
        # Tensors on the meta device stand in for a GPU's.
        device_type = "cuda"
    requirements = AttentionRequirements(
        device_type=device_type,
        moves_state=moves_state,
        bias=_bias_kind(bias),
        head_dim=q.shape[-1],
        dtype=q.dtype,
        masked=document_starts is not None,
    )
    backend = get_backend(select_backend(requirements, backends), rotation_by_kernel)
    extra_width = q.shape[-1] - v.shape[-1]
    if not extra_width:
        return backend.attend(q, k, v, state, bias, document_starts, moves_state)
    # Kernels support a single width, so pad the values.
    padded_values = F.pad(v, (0, extra_width))
    padded_content, _ = backend.attend(q, k, padded_values, state, bias, document_starts, moves_state)
    return padded_content[..., :-extra_width], None


def _bias_kind(bias: ScoreBias | None) -> BiasKind:
    if bias is None:
        return "none"
    if isinstance(bias, DistanceBias):
        return "distance"
    return "pair"


def backends_by_priority(forced: str, requirements: AttentionRequirements | None = None) -> Backends:
    """Return all backends in order of preference.

    The forced backend, or the ones preferred by `auto`, come first. The others follow for single layers with other
    requirements: the last layer, for example, does not move the state.

    Args:
        forced: Value of training.attention.
        requirements: Requirements of most layers. Only read by `auto`.
    """
    if forced != AUTO:
        return tuple(dict.fromkeys((forced, *BACKENDS)))
    assert requirements is not None
    preferred = [name for name in BACKENDS if get_backend(name).is_preferred_for(requirements)]
    return tuple(dict.fromkeys((*preferred, *BACKENDS)))


@cache
def select_backend(requirements: AttentionRequirements, backends: Backends | None = None) -> str:
    """Return the name of the first backend supporting a layer.

    Args:
        requirements: Requirements of the layer.
        backends: Names of backends in order of preference. None for the order of `auto`.

    Raises:
        UserError: No backend supports the layer.
    """
    candidates = backends
    if candidates is None:
        candidates = backends_by_priority(AUTO, requirements)
    for name in candidates:
        if get_backend(name).unsupported_reason(requirements) is None:
            return name
    raise UserError(f"no attention backend of {', '.join(backends or BACKENDS)} supports {requirements}")


def check_forced_backend(requirements: AttentionRequirements, forced: str, encoding: str) -> None:
    """Check that the backend forced by training.attention supports the encoding.

    Args:
        requirements: Requirements of most layers.
        forced: Value of training.attention.
        encoding: Name of the encoding.

    Raises:
        UserError: The backend does not support it.
    """
    if forced == AUTO:
        return
    reason = get_backend(forced).unsupported_reason(requirements)
    if reason is None:
        return
    supported = ", ".join(name for name in BACKENDS if get_backend(name).unsupported_reason(requirements) is None)
    raise UserError(
        f"training.attention is {forced}, which {reason} (encoding {encoding}): choose {AUTO}, or one of {supported}"
    )


def get_backend(name: str, rotation_by_kernel: bool = False) -> Backend:
    """Return the backend registered as `name`, always the same object for the same arguments.

    Args:
        name: Name in the registry.
        rotation_by_kernel: Whether our own Triton kernels rotate queries and keys for a RotatingBackend.
    """
    return _new_backend(name, rotation_by_kernel)


@cache
def _new_backend(name: str, rotation_by_kernel: bool) -> Backend:
    backend_class = BACKENDS[name].load()
    if issubclass(backend_class, RotatingBackend):
        return backend_class(rotation_by_kernel)
    return backend_class()
