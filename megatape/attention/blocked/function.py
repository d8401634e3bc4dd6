"""Causal attention by blocks of query rows, as one differentiable function.

TAPE on a CPU: PyTorch's flash attention does not support values wider than keys there, and calling it separately for v and e
would compute every score twice, forward and backward. Here each block's scores are computed once and used for [v | e]. Two
choices keep memory near that of rotary attention: nothing of size N x N is saved, and queries and keys are saved before
rotating them, which the backward pass repeats.

A bias on the scores is computed block by block, in both passes, so the bias of all pairs never exists.

Ring attention on P context-parallel ranks (Liu et al., arXiv 2310.01889): distributed/layout.py splits tokens in a zigzag, and
the computation is the same over more blocks. Each rank's rotated keys and [v | e] travel around the ring in compute precision,
overlapping with the previous rank's scores. In the backward pass they travel again. The sum of their gradients follows one step
later, until it is back at its rank.

In a graph of torch.compile, each pass is one operator (operators.py). Otherwise a graph would have an operator for every block.

Shapes as in model/transformer.py, where N is M/P.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.blocked.operators import backward_in_graph, forward_in_graph
from megatape.attention.blocked.passes import Gradients, Inputs, Outputs, backward_pass, forward_pass
from megatape.attention.blocked.row_blocks import RowBlocks

# Index of the bias's first weight among the arguments of BlockedAttention.
FIRST_WEIGHT = 8


class BlockedAttention(torch.autograd.Function):
    """A v [B, N, H, R], and with a state A e [B, N, H, W] or else None."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        initial: Tensor | None,
        delta: Tensor | None,
        document_starts: DocumentStarts,
        row_blocks: RowBlocks,
        bias: ScoreBias | None,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        inputs = Inputs(q, k, v, initial, delta, document_starts, weights)
        run = forward_in_graph if torch.compiler.is_compiling() else forward_pass
        outputs: Outputs = run(inputs, row_blocks, bias)
        ctx.row_blocks = row_blocks
        ctx.bias = bias
        ctx.save_for_backward(*inputs[:-1], *outputs, *weights)
        return outputs.content, outputs.attended_state

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        d_content: Tensor,
        d_attended_state: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        q, k, v, initial, delta, document_starts, content, attended_state, log_sum, *weights = ctx.saved_tensors
        inputs = Inputs(q, k, v, initial, delta, document_starts, weights)
        outputs = Outputs(content, attended_state, log_sum)
        needs_grad = ctx.needs_input_grad[FIRST_WEIGHT:]
        run = backward_in_graph if torch.compiler.is_compiling() else backward_pass
        gradients: Gradients = run(inputs, outputs, d_content, d_attended_state, ctx.row_blocks, ctx.bias, needs_grad)
        d_q, d_k, d_v, d_delta, d_weights = gradients
        return d_q, d_k, d_v, None, d_delta, None, None, None, *d_weights
