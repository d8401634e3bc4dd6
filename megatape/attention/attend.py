"""Causal attention, and the selection of its backend. Shapes as in model/transformer.py."""

from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, Backend, BiasKind, DocumentStarts
from megatape.attention.bias import Decay, DistanceBias, ScoreBias
from megatape.attention.rotating_backend import RotatingBackend
from megatape.attention.rotation import PositionState
from megatape.errors import UserError
from megatape.registry import AUTO, BACKENDS

# Names of backends in order of preference.
Backends = tuple[str, ...]

# Backends made so far, by the arguments of `get_backend`. torch.compile can read a dictionary, but no functools.cache.
_BACKENDS: dict[tuple[str, bool, bool], Backend] = {}


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
        averages_state: bool,
        window: int | None,
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
    averages_state: bool = False,
    window: int | None = None,
    backends: Backends | None = None,
    rotation_by_kernel: bool = False,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute causal attention by the first backend supporting the call.

    Args:
        q: Queries [B, N, H, R]. Encodings may make queries and keys wider than values.
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        state: Position tensor e for rotating queries and keys, [B, N, L, W], or None.
        bias: Bias on the scores, or None.
        document_starts: Index of the first token in each token's document, [B, N], or None without packed documents.
        averages_state: Whether to average e with the same weights as the values.
        window: Number of tokens that a token attends to, itself and those just before it, or None for all earlier ones.
        backends: Names of backends in order of preference, or None for the order of `auto`.
        rotation_by_kernel: Whether our own Triton kernels rotate queries and keys before PyTorch's attention, where they can.
        deterministic: Whether the same inputs must give the same gradients, bit for bit.

    Returns:
        A v [B, N, H, R], and A e [B, N, H, W] or None without `averages_state`, in the dtype of v.

    Raises:
        UserError: No backend supports the call.
    """
    if window is not None and window >= q.shape[1]:
        # A window of all tokens hides none.
        window = None
    device_type = q.device.type
    if q.is_meta:
        # Tensors on the meta device stand in for a GPU's.
        device_type = "cuda"
    name = select_for_call(
        backends,
        rotation_by_kernel,
        device_type=device_type,
        averages_state=averages_state,
        bias=_bias_kind(bias),
        head_dim=q.shape[-1],
        dtype=q.dtype,
        masked=document_starts is not None,
        windowed=window is not None,
        grouped=q.shape[2] != k.shape[2],
        deterministic=deterministic,
        compiled=torch.compiler.is_compiling(),
    )
    backend = get_backend(name, rotation_by_kernel, deterministic)
    extra_width = q.shape[-1] - v.shape[-1]
    # Kernels support a single width, so pad the values.
    values = F.pad(v, (0, extra_width)) if extra_width else v
    if window is None:
        content, attended_state = backend.attend(q, k, values, state, bias, document_starts, averages_state)
    else:
        content, attended_state = backend.attend(q, k, values, state, bias, document_starts, averages_state, window)
    if extra_width:
        content = content[..., :-extra_width]
    return content, attended_state


def select_for_call(backends: Backends | None, rotation_by_kernel: bool, **requirements: Any) -> str:
    """Return the name of the backend for a call of `attend`, and make the backend.

    torch.compile takes the result as a constant (model/wrappers/compilation.py). It can do so because all arguments are plain
    values.

    Args:
        backends: See `attend`.
        rotation_by_kernel: See `attend`.
        requirements: Fields of AttentionRequirements.
    """
    needed = AttentionRequirements(**requirements)
    name = select_backend(needed, backends)
    get_backend(name, rotation_by_kernel, needed.deterministic)
    return name


def _bias_kind(bias: ScoreBias | None) -> BiasKind:
    if bias is None:
        return "none"
    if isinstance(bias, DistanceBias):
        return "distance"
    if isinstance(bias, Decay):
        return "decay"
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
        backends: Names of backends in order of preference, or None for the order of `auto`.

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


def get_backend(name: str, rotation_by_kernel: bool = False, deterministic: bool = False) -> Backend:
    """Return the backend registered as `name`, always the same object for the same arguments.

    Args:
        name: Name in the registry.
        rotation_by_kernel: Whether our own Triton kernels rotate queries and keys for a RotatingBackend.
        deterministic: Whether a RotatingBackend with a choice must give the same gradients for the same inputs.
    """
    key = (name, rotation_by_kernel, deterministic)
    if key not in _BACKENDS:
        _BACKENDS[key] = _new_backend(*key)
    return _BACKENDS[key]


def _new_backend(name: str, rotation_by_kernel: bool, deterministic: bool) -> Backend:
    backend_class = BACKENDS[name].load()
    if issubclass(backend_class, RotatingBackend):
        return backend_class(rotation_by_kernel, deterministic)
    return backend_class()
