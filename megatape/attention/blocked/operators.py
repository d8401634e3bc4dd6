"""The two passes of blocked attention as operators of torch.compile's graphs, computed by passes.py.

An operator takes tensors and plain values. So a bias is given by the location of its class, and made again from its weights.
"""

from collections.abc import Sequence
from functools import cache
from pkgutil import resolve_name
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.attention.blocked.passes import Gradients, Inputs, Outputs, backward_pass, forward_pass
from megatape.attention.blocked.row_blocks import RowBlocks
from megatape.distributed.mesh import Axis
from megatape.utils.pytorch.operators import drop_nones, empty_copies, operator, restore_nones
from megatape.utils.pytorch.torch_internals import named_group


def forward_in_graph(inputs: Inputs, row_blocks: RowBlocks, bias: ScoreBias | None) -> Outputs:
    """Compute `forward_pass` by an operator."""
    results = _forward(inputs, _plain_settings(row_blocks, bias))
    return Outputs(*restore_nones(results, True, inputs.initial is not None, True))


def backward_in_graph(
    inputs: Inputs,
    outputs: Outputs,
    d_content: Tensor,
    d_attended_state: Tensor | None,
    row_blocks: RowBlocks,
    bias: ScoreBias | None,
    needs_grad: Sequence[bool],
) -> Gradients:
    """Compute `backward_pass` by an operator."""
    settings = _plain_settings(row_blocks, bias)
    results = _backward(inputs, outputs, d_content, d_attended_state, settings, list(needs_grad))
    d_q, d_k, d_v, d_delta, *d_weights = restore_nones(results, True, True, True, inputs.delta is not None, *needs_grad)
    return Gradients(d_q, d_k, d_v, d_delta, d_weights)


class _Settings(NamedTuple):
    """Plain values from which an operator makes blocks and bias.

    Attributes:
        bias_location: Location of the bias's class, "module:name", or None without a bias.
        min_rows: Minimum number of rows in a block.
        window: Number of tokens that a token attends to, or None for all earlier ones.
        num_context_ranks: Number of context-parallel ranks.
        context_rank: Index of this rank among them.
        context_group: Name of their process group, or None for a single rank.
    """

    bias_location: str | None
    min_rows: int
    window: int | None
    num_context_ranks: int
    context_rank: int
    context_group: str | None

    def row_blocks(self) -> RowBlocks:
        """Return the blocks of query rows."""
        group = None
        if self.context_group is not None:
            group = named_group(self.context_group)
        context_axis = Axis("context", self.num_context_ranks, self.context_rank, group)
        return RowBlocks(context_axis, self.min_rows, self.window)

    def score_bias(self, weights: Sequence[Tensor]) -> ScoreBias | None:
        """Return the bias, made again from its weights, see ScoreBias."""
        if self.bias_location is None:
            return None
        return _bias_class(self.bias_location)(*weights)


def _plain_settings(row_blocks: RowBlocks, bias: ScoreBias | None) -> _Settings:
    bias_location = None
    if bias is not None:
        bias_location = f"{type(bias).__module__}:{type(bias).__qualname__}"
    context_axis = row_blocks.context_axis
    group_name = None
    if context_axis.group is not None:
        group_name = context_axis.group.group_name
    return _Settings(
        bias_location=bias_location,
        min_rows=row_blocks.min_rows,
        window=row_blocks.window,
        num_context_ranks=context_axis.size,
        context_rank=context_axis.rank,
        context_group=group_name,
    )


@cache
def _bias_class(location: str) -> type[ScoreBias]:
    bias_class: type[ScoreBias] = resolve_name(location)
    return bias_class


def _forward_shapes(inputs: Inputs, settings: _Settings) -> list[Tensor]:
    q = inputs.q
    v = inputs.v
    batch, length, num_heads, _ = q.shape
    num_channels = inputs.k.shape[2]
    content = v.new_empty(batch, length, num_heads, v.shape[-1])
    attended_state = None
    if inputs.initial is not None:
        attended_state = v.new_empty(batch, length, num_heads, inputs.initial.shape[-1])
    log_sum = q.new_empty(num_heads // num_channels, batch * num_channels, length, 1, dtype=torch.float32)
    return drop_nones(content, attended_state, log_sum)


@operator("blocked_forward", _forward_shapes)
def _forward(inputs: Inputs, settings: _Settings) -> list[Tensor]:
    """Return the Outputs, see `forward_pass`."""
    return drop_nones(*forward_pass(inputs, settings.row_blocks(), settings.score_bias(inputs.weights)))


def _backward_shapes(
    inputs: Inputs,
    outputs: Outputs,
    d_content: Tensor,
    d_attended_state: Tensor | None,
    settings: _Settings,
    needs_grad: list[bool],
) -> list[Tensor]:
    trained = [weight for weight, needs in zip(inputs.weights, needs_grad, strict=True) if needs]
    return empty_copies(inputs.q, inputs.k, inputs.v, inputs.delta, *trained)


@operator("blocked_backward", _backward_shapes)
def _backward(
    inputs: Inputs,
    outputs: Outputs,
    d_content: Tensor,
    d_attended_state: Tensor | None,
    settings: _Settings,
    needs_grad: list[bool],
) -> list[Tensor]:
    """Return the Gradients, see `backward_pass`."""
    bias = settings.score_bias(inputs.weights)
    gradients = backward_pass(inputs, outputs, d_content, d_attended_state, settings.row_blocks(), bias, needs_grad)
    d_q, d_k, d_v, d_delta, d_weights = gradients
    return drop_nones(d_q, d_k, d_v, d_delta, *d_weights)
