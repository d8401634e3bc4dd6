"""The two passes of attention by our kernels. In a graph of torch.compile, each pass is one operator.

Shapes as in model/transformer.py. All tensors are contiguous.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from megatape.attention.kernels.backward import keys_kernel, queries_kernel
from megatape.attention.kernels.distances import distances_kernel
from megatape.attention.kernels.forward import forward_kernel
from megatape.attention.kernels.head_launches import HeadLaunches
from megatape.attention.kernels.rotation import rotated, rotated_with_state
from megatape.attention.kernels.scores import LOG2_E
from megatape.utils.pytorch.operators import drop_nones, empty_copies, operator, restore_nones


class Inputs(NamedTuple):
    """Tensors that attention reads.

    Attributes:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        initial: First term of the position tensor e, float32 [B, N, 1, R], or None without a state.
        delta: Second term of e, [B, N, L, R], or None.
        by_distance: Bias on the scores, float32 [H, N], or None.
        decay: Number c of each token, for a bias c_i - c_j on the scores, float64 [B, N, H], or None.
        starts: Index of the first token that each token sees, [B, N], or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    initial: Tensor | None
    delta: Tensor | None
    by_distance: Tensor | None
    decay: Tensor | None
    starts: Tensor | None


class Outputs(NamedTuple):
    """Results of the forward pass.

    Attributes:
        content: A v [B, N, H, R].
        attended_state: A e [B, N, H, R], or None if attention does not average e.
        log_sum: Base-2 logarithm of each query's sum of exponentials, float32 [B, H, N].
    """

    content: Tensor
    attended_state: Tensor | None
    log_sum: Tensor


class Gradients(NamedTuple):
    """Results of the backward pass.

    Attributes:
        d_q: Gradient of the queries.
        d_k: Gradient of the keys.
        d_v: Gradient of the values.
        d_delta: Gradient of e's second term, or None without one.
        d_by_distance: Gradient of the bias by distance, float32 [H, N], or None if it needs none.
        d_decay: Gradient of c, float64 [B, N, H], or None without it.
    """

    d_q: Tensor
    d_k: Tensor
    d_v: Tensor
    d_delta: Tensor | None
    d_by_distance: Tensor | None
    d_decay: Tensor | None


def forward_pass(inputs: Inputs, averages_state: bool, num_pairs: int) -> Outputs:
    """Compute attention.

    Args:
        inputs: Tensors that attention reads.
        averages_state: Whether to average e with the same weights as the values.
        num_pairs: Number of pairs of tokens with scores, including the masked half.
    """
    results = _forward(inputs, averages_state, num_pairs)
    return Outputs(*restore_nones(results, True, averages_state, True))


def backward_pass(
    inputs: Inputs,
    outputs: Outputs,
    d_content: Tensor,
    d_attended_state: Tensor | None,
    num_pairs: int,
    needs_bias_gradient: bool,
) -> Gradients:
    """Compute the gradients of attention. Rotates queries and keys again.

    Args:
        inputs: Tensors that attention reads.
        outputs: Results of the forward pass.
        d_content: Gradient of A v.
        d_attended_state: Gradient of A e, or None if attention does not average e.
        num_pairs: Number of pairs of tokens with scores, including the masked half.
        needs_bias_gradient: Whether the bias by distance needs a gradient. ALiBi's does not.
    """
    results = _backward(inputs, outputs, d_content, d_attended_state, num_pairs, needs_bias_gradient)
    has_delta = inputs.delta is not None
    has_decay = inputs.decay is not None
    return Gradients(*restore_nones(results, True, True, True, has_delta, needs_bias_gradient, has_decay))


def _forward_shapes(inputs: Inputs, averages_state: bool, num_pairs: int) -> list[Tensor]:
    q = inputs.q
    content = torch.empty_like(q)
    attended_state = torch.empty_like(q) if averages_state else None
    log_sum = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
    return drop_nones(content, attended_state, log_sum)


@operator("fused_attention_forward", _forward_shapes)
def _forward(inputs: Inputs, averages_state: bool, num_pairs: int) -> list[Tensor]:
    """Return the Outputs, see `forward_pass`."""
    results = _forward_shapes(inputs, averages_state, num_pairs)
    content, attended_state, log_sum = restore_nones(results, True, averages_state, True)
    launches = HeadLaunches(inputs.q, inputs.k, _inputs_of_kernels(inputs, averages_state), num_pairs)
    launches.run(forward_kernel, content=content, attended_state=attended_state, log_sum=log_sum)
    return results


def _backward_shapes(
    inputs: Inputs,
    outputs: Outputs,
    d_content: Tensor,
    d_attended_state: Tensor | None,
    num_pairs: int,
    needs_bias_gradient: bool,
) -> list[Tensor]:
    q = inputs.q
    gradients = empty_copies(q, inputs.k, inputs.v, inputs.delta)
    if needs_bias_gradient:
        gradients.append(q.new_empty(q.shape[2], q.shape[1], dtype=torch.float32))
    if inputs.decay is not None:
        gradients.append(q.new_empty(q.shape[:3], dtype=torch.float64))
    return gradients


@operator("fused_attention_backward", _backward_shapes)
def _backward(
    inputs: Inputs,
    outputs: Outputs,
    d_content: Tensor,
    d_attended_state: Tensor | None,
    num_pairs: int,
    needs_bias_gradient: bool,
) -> list[Tensor]:
    """Return the Gradients, see `backward_pass`."""
    q, k, _, initial, delta, *_ = inputs
    rotated_q = q
    if initial is not None:
        rotated_q = rotated(q, k, initial, delta)
    averages_state = outputs.attended_state is not None
    tensors = {
        **_inputs_of_kernels(inputs, averages_state),
        **outputs._asdict(),
        "rotated_q": rotated_q,
        "d_content": d_content,
        "d_attended_state": d_attended_state,
    }
    launches = HeadLaunches(q, k, tensors, num_pairs)
    d_q, d_state, row_sum = _query_gradients(inputs, outputs, launches)
    d_k, d_v, d_delta, d_decay = _key_gradients(inputs, outputs, launches, d_state, row_sum)
    d_by_distance = _bias_gradient(outputs, launches, row_sum) if needs_bias_gradient else None
    return drop_nones(d_q, d_k, d_v, d_delta, d_by_distance, d_decay)


def _query_gradients(inputs: Inputs, outputs: Outputs, launches: HeadLaunches) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return the gradient of the queries, that of e through them or None without a delta, and each query's d_i [B, H, N]."""
    d_q = torch.empty_like(inputs.q)
    d_state = None if inputs.delta is None else torch.empty_like(inputs.q)
    row_sum = torch.empty_like(outputs.log_sum)
    launches.run(queries_kernel, d_q=d_q, d_state=d_state, row_sum=row_sum)
    return d_q, d_state, row_sum


def _key_gradients(
    inputs: Inputs,
    outputs: Outputs,
    launches: HeadLaunches,
    d_state: Tensor | None,
    row_sum: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of keys, values, delta and decay. The last two are None without a delta or a decay.

    d_state, row_sum: See _query_gradients.
    """
    d_k = torch.empty_like(inputs.k)
    d_v = torch.empty_like(inputs.v)
    d_delta = None if inputs.delta is None else torch.empty_like(inputs.delta)
    d_decay = None if inputs.decay is None else torch.empty_like(outputs.log_sum)
    ends = None if inputs.starts is None else _ends(inputs.starts)
    launches.run(
        keys_kernel,
        # Inputs
        ends=ends,
        row_sum=row_sum,
        d_state=d_state,
        # Outputs
        d_k=d_k,
        d_v=d_v,
        d_delta=d_delta,
        d_decay=d_decay,
    )
    if d_decay is not None:
        d_decay = d_decay.transpose(1, 2).double()  # [B, N, H]
    return d_k, d_v, d_delta, d_decay


def _bias_gradient(outputs: Outputs, launches: HeadLaunches, row_sum: Tensor) -> Tensor:
    """Return the gradient of the bias by distance, float32 [H, N]. row_sum: See _query_gradients."""
    parts = outputs.log_sum.new_zeros(2, *outputs.log_sum.shape)
    launches.run(distances_kernel, row_sum=row_sum, parts=parts)
    return parts.sum((0, 1))


def _inputs_of_kernels(inputs: Inputs, averages_state: bool) -> dict[str, Tensor | None]:
    """Return tensors that kernels of both passes read, by the names of their arguments."""
    rotated_k = inputs.k
    e = None
    if inputs.initial is not None:
        rotated_k, e = rotated_with_state(inputs.k, inputs.initial, inputs.delta, averages_state)
    bias = None
    if inputs.by_distance is not None:
        bias = (inputs.by_distance * LOG2_E.value).contiguous()  # Kernels compute powers of two.
    decay = _in_two_parts(inputs.decay)
    return {**inputs._asdict(), "rotated_k": rotated_k, "e": e, "bias": bias, "decay": decay}


def _in_two_parts(decay: Tensor | None) -> Tensor | None:
    """Return c times log2(e) as a float32 number and its rounding error, [B, N, H] -> [2, B, H, N]. See scores.add_decay."""
    if decay is None:
        return None
    exact = decay.double().transpose(1, 2) * LOG2_E.value
    rounded = exact.float()
    error = (exact - rounded.double()).float()
    return torch.stack([rounded, error])


def _ends(starts: Tensor) -> Tensor:
    """Return the token after the last one seeing each token, [B, N]. `starts` [B, N] never decreases within a sample."""
    tokens = torch.arange(starts.shape[1], device=starts.device, dtype=starts.dtype)
    return torch.searchsorted(starts, tokens.expand_as(starts).contiguous(), right=True)
