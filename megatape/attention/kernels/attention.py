"""Attention by our kernels as one differentiable function. attention/blocked/function.py does the same in plain PyTorch.

Shapes as in model/transformer.py.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.backend import DocumentStarts
from megatape.attention.kernels.passes import Inputs, Outputs, backward_pass, forward_pass
from megatape.attention.rotation import PositionState
from megatape.attention.windows import num_pairs_in_window, starts_in_window

# Number of arguments of _FusedAttention before the tensors.
NUM_OPTIONS = 2
# Index of the bias by distance among its arguments.
BY_DISTANCE = NUM_OPTIONS + Inputs._fields.index("by_distance")


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: PositionState | None,
    by_distance: Tensor | None,
    decay: Tensor | None,
    document_starts: DocumentStarts,
    averages_state: bool,
    window: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute causal attention by our kernels. Same results as `attend`, with e as wide as the heads.

    Kernels skip the keys that documents or the window hide from all queries of a block.

    Args:
        q: Queries [B, N, H, R].
        k: Keys [B, N, L, R].
        v: Values [B, N, L, R].
        state: Position tensor, or None.
        by_distance: Bias on the scores, float32 [H, N], or None.
        decay: Number c of each token, for a bias c_i - c_j on the scores, float64 [B, N, H], or None.
        document_starts: Index of the first token of each token's document, [B, N], or None.
        averages_state: Whether to average e with the same weights as the values.
        window: Number of tokens that a token attends to, or None for all earlier ones.
    """
    initial, delta = state or (None, None)
    starts = document_starts
    if window is not None:
        starts = starts_in_window(q, document_starts, window)
    num_pairs = num_pairs_in_window(q.shape[1], window)
    averages_state = averages_state and initial is not None
    inputs = Inputs(q, k, v, initial, delta, by_distance, decay, starts)
    return _FusedAttention.apply(averages_state, num_pairs, *inputs)


class _FusedAttention(torch.autograd.Function):
    """A v and A e [B, N, H, R], or None without averaging e. The tensors are the fields of Inputs.

    Saves arguments, results and one number per query. The backward pass recomputes rotated queries and keys.
    """

    @staticmethod
    def forward(
        ctx: Any,
        averages_state: bool,
        num_pairs: int,
        *tensors: Any,
    ) -> tuple[Tensor, Tensor | None]:
        contiguous: list[Any] = [_contiguous(x) for x in tensors]
        inputs = Inputs(*contiguous)
        outputs = forward_pass(inputs, averages_state, num_pairs)
        ctx.num_pairs = num_pairs
        ctx.save_for_backward(*inputs, *outputs)
        return outputs.content, outputs.attended_state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_content: Tensor, d_attended_state: Tensor | None) -> tuple[Tensor | None, ...]:
        saved_tensors = ctx.saved_tensors  # Activation checkpointing allows reading them once.
        num_inputs = len(Inputs._fields)
        gradients = backward_pass(
            Inputs(*saved_tensors[:num_inputs]),
            Outputs(*saved_tensors[num_inputs:]),
            d_content.contiguous(),
            _contiguous(d_attended_state),
            ctx.num_pairs,
            needs_bias_gradient=ctx.needs_input_grad[BY_DISTANCE],
        )
        d_q, d_k, d_v, d_delta, d_by_distance, d_decay = gradients
        return None, None, d_q, d_k, d_v, None, d_delta, d_by_distance, d_decay, None


def _contiguous(x: Tensor | None) -> Tensor | None:
    if x is None:
        return None
    return x.contiguous()
