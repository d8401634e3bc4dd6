"""Attention by FlashAttention-4 with rotation, as one operator of PyTorch for each pass: `megatape::fa4` and `fa4_backward`.

torch.compile and the planner see these operators. The forward pass saves the arguments, the result and one number per query,
and the backward pass rotates queries and keys again. Shapes as in model/transformer.py, with an e as wide as the heads.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.backend import DocumentStarts
from megatape.attention.fa4 import package
from megatape.attention.fa4.documents import document_ends
from megatape.attention.fa4.package import BLACKWELL, Scope
from megatape.attention.fa4.tiles import backward_tile, forward_tile
from megatape.attention.rotating_backend import gradients_with_values, rotated_with_values, rotation_gradients
from megatape.attention.rotation import PositionState
from megatape.attention.windows import num_pairs_in_window
from megatape.utils.pytorch.operators import drop_nones, empty_copies, operator, restore_nones


class Options(NamedTuple):
    """Options of attention.

    Attributes:
        averages_state: Whether to average e with the same weights as the values.
        window: Number of tokens that a token attends to, or None for all earlier ones.
        rotation_by_kernel: Whether our own Triton kernels rotate queries and keys, where they can.
        deterministic: Whether to add gradients in a fixed order.
    """

    averages_state: bool
    window: int | None
    rotation_by_kernel: bool
    deterministic: bool


class Inputs(NamedTuple):
    """Tensors that attention reads.

    Attributes:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, V].
        initial: First term of the position tensor e, for rotating queries and keys, or None.
        delta: Second term of e, or None.
        document_starts: Index of the first token of each token's document, [B, N], or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    initial: Tensor | None
    delta: Tensor | None
    document_starts: DocumentStarts

    @property
    def state(self) -> PositionState | None:
        """Position state, or None without e."""
        if self.initial is None:
            return None
        return PositionState(self.initial, self.delta)


def fa4_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PositionState | None,
    document_starts: DocumentStarts,
    options: Options,
) -> Tensor:
    """Compute causal attention by FlashAttention-4.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, V].
        state: State with an e as wide as the heads, for rotating queries and keys, or None.
        document_starts: Index of the first token of each token's document, [B, N], or None.
        options: Options of attention.

    Returns:
        A v [B, N, H, V], or A [v | e] [B, N, H, V + R].
    """
    initial, delta = state or (None, None)
    inputs = Inputs(q.contiguous(), k.contiguous(), v.contiguous(), initial, delta, document_starts)
    return _Attention.apply(options, *inputs)


class _Attention(torch.autograd.Function):
    """A v or A [v | e]. The tensors are the fields of Inputs."""

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: Any) -> Tensor:
        out, log_sum = _forward(Inputs(*tensors), options)
        ctx.options = options
        ctx.save_for_backward(*tensors, out, log_sum)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, log_sum = ctx.saved_tensors
        inputs = Inputs(*tensors)
        gradients = _backward(inputs, out, log_sum, d_out, ctx.options)
        d_q, d_k, d_v, d_delta = restore_nones(gradients, True, True, True, inputs.delta is not None)
        return None, d_q, d_k, d_v, None, d_delta, None


def _num_scores(inputs: Inputs, options: Options) -> int:
    """Return the number of scores, including the masked half."""
    batch_size, length, num_heads, _ = inputs.q.shape
    return batch_size * num_heads * num_pairs_in_window(length, options.window)


def _value_width(inputs: Inputs, options: Options) -> int:
    """Return the width of v or [v | e]."""
    width = inputs.v.shape[-1]
    if options.averages_state:
        width += inputs.q.shape[-1]
    return width


def _forward_shapes(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor]:
    batch_size, length, num_heads, _ = inputs.q.shape
    log_sum_shape: tuple[int, ...] = (batch_size, num_heads, length)
    if inputs.document_starts is not None:
        log_sum_shape = (num_heads, batch_size * length)
    out = inputs.q.new_empty(batch_size, length, num_heads, _value_width(inputs, options))
    return out, inputs.q.new_empty(log_sum_shape, dtype=torch.float32)


def _forward_flops(inputs: Inputs, options: Options) -> int:
    """Return the FLOPs of the products with keys and values.

    Half of the scores are masked, and a multiply-add has two FLOPs, so there is one for each score and channel.
    """
    head_dim = inputs.q.shape[-1]
    return _num_scores(inputs, options) * (head_dim + _value_width(inputs, options))


@operator("fa4", _forward_shapes, _forward_flops)
def _forward(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor]:
    """Return A v or A [v | e], and the logarithm of each query's sum of exponentials, float32 [B, H, N] or [H, B N]."""
    q = inputs.q
    rotated_q, rotated_k, values = _rotated_inputs(inputs, options)
    tile = forward_tile(q.shape[-1], q.shape[1]) if _needs_tile(q, values) else None
    scope = _scope(inputs, options)
    query_rows, key_rows, value_rows = _rows(scope, rotated_q, rotated_k, values)
    out, log_sum = package.forward(query_rows, key_rows, value_rows, scope, tile)
    return out.view(*q.shape[:3], values.shape[-1]), log_sum


def _backward_shapes(inputs: Inputs, out: Tensor, log_sum: Tensor, d_out: Tensor, options: Options) -> list[Tensor]:
    return empty_copies(inputs.q, inputs.k, inputs.v, inputs.delta)


def _backward_flops(inputs: Inputs, out: Tensor, log_sum: Tensor, d_out: Tensor, options: Options) -> int:
    """Return the FLOPs of the products for scores and their gradients, queries, keys, and values."""
    head_dim = inputs.q.shape[-1]
    return _num_scores(inputs, options) * (3 * head_dim + 2 * _value_width(inputs, options))


@operator("fa4_backward", _backward_shapes, _backward_flops)
def _backward(inputs: Inputs, out: Tensor, log_sum: Tensor, d_out: Tensor, options: Options) -> list[Tensor]:
    """Return the gradients of queries, keys and values, and of delta if there is one."""
    q = inputs.q
    k = inputs.k
    rotated_q, rotated_k, values = _rotated_inputs(inputs, options)
    tile = backward_tile(q.shape[-1], q.shape[1]) if _needs_tile(q, values) else None
    scope = _scope(inputs, options)
    query_rows, key_rows, value_rows = _rows(scope, rotated_q, rotated_k, values)
    out_rows, d_out_rows = _rows(scope, out, d_out.contiguous())
    d_rotated_q, d_rotated_k, d_values = package.backward(
        query_rows, key_rows, value_rows, out_rows, d_out_rows, log_sum, scope, tile
    )

    d_rotated_q = d_rotated_q.view(q.shape)
    d_rotated_k = _sum_groups(d_rotated_k, k)
    d_values = _sum_groups(d_values, k)
    state = inputs.state
    if state is None:
        return [d_rotated_q, d_rotated_k, d_values]
    by_kernel = options.rotation_by_kernel
    if options.averages_state:
        d_q, d_k, d_v, d_delta = gradients_with_values(q, k, state, d_rotated_q, d_rotated_k, d_values, by_kernel)
    else:
        d_q, d_k, d_delta = rotation_gradients(q, k, state, d_rotated_q, d_rotated_k, None, by_kernel)
        d_v = d_values
    return drop_nones(d_q, d_k, d_v, d_delta)


def _rotated_inputs(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries and keys, and v or [v | e]. Keys and values are repeated for query heads if values are wider."""
    q, k, v, *_ = inputs
    rotated_q, rotated_k, values = rotated_with_values(
        q, k, v, inputs.state, options.averages_state, options.rotation_by_kernel
    )
    group_size = q.shape[2] // k.shape[2]
    # The package's backward pass only supports grouped queries with values as wide as queries.
    if group_size > 1 and values.shape[-1] != q.shape[-1]:
        rotated_k = rotated_k.repeat_interleave(group_size, 2)
        values = values.repeat_interleave(group_size, 2)
    return rotated_q, rotated_k, values


def _sum_groups(gradient: Tensor, k: Tensor) -> Tensor:
    """Return the gradient of keys or values before they were repeated for query heads, [B, N, L, width].

    Args:
        gradient: Gradient from the package, [B, N, L or H, width] or [B N, L or H, width].
        k: Keys [B, N, L, R].
    """
    batch_size, length, num_channels, _ = k.shape
    by_head = gradient.view(batch_size, length, num_channels, -1, gradient.shape[-1])
    if by_head.shape[3] == 1:
        return by_head.squeeze(3)
    return by_head.sum(3)


def _scope(inputs: Inputs, options: Options) -> Scope:
    """Return the pairs of queries and keys to compute."""
    ends = None
    if inputs.document_starts is not None:
        ends = document_ends(inputs.document_starts, inputs.document_starts._version)
    return Scope(inputs.q.shape[1], options.window, ends, options.deterministic)


def _needs_tile(q: Tensor, values: Tensor) -> bool:
    """Whether the package's own choice of tiles does not fit."""
    is_wider = values.shape[-1] > q.shape[-1]
    return is_wider and package.compute_capability() not in BLACKWELL


def _rows(scope: Scope, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors [B, N, ...] as one row of tokens, [B N, ...], if samples consist of documents."""
    if scope.document_ends is None:
        return tensors
    return tuple(tensor.flatten(0, 1) for tensor in tensors)
