"""Attention on GPUs by torch's compiled flex_attention, with biases by distance and within documents.

Shapes as in model/transformer.py.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from megatape.attention.backend import AttentionRequirements, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.block_masks import causal_blocks, document_blocks
from megatape.attention.rotating_backend import RotatingBackend, rotated_heads
from megatape.attention.rotation import PositionState
from megatape.attention.split_values import attend_v_and_e
from megatape.attention.windows import num_pairs_in_window
from megatape.utils.pytorch.torch_internals import limit_recompilations

# The compiler does not support smaller heads.
MIN_HEAD_DIM = 16

# torch chooses tiles by the query width alone. With wider values these tiles spill registers in the forward pass, so the
# tiles here fit the width of the values.
WIDER_VALUES = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_warps": 8}
# torch does not count the bias either. Each pipeline stage holds a float32 bias per score, and three stages exceed an H100's
# shared memory.
BIASED = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_stages": 2, "bwd_num_stages": 2}


class Flex(RotatingBackend):
    """Attention by flex_attention, with document masks and windows.

    A bias by distance is a lookup, fused into the scores by the compiler.
    Biases by pair are not supported: every weight of their networks contributes to every score, so the fused gradient would
    need one atomic addition per weight and score.
    """

    has_windows = True

    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        if requirements.bias in ("decay", "pair"):
            return "computes no bias of pairs of tokens"
        if requirements.device_type != "cuda":
            return f"is compiled for GPUs, and the device is {requirements.device_type!r}"
        if requirements.bias == "distance" and requirements.deterministic:
            return "adds gradients of the bias in any order, which training.deterministic excludes"
        if requirements.head_dim < MIN_HEAD_DIM:
            return f"needs a head_dim of at least {MIN_HEAD_DIM}, and model.head_dim is {requirements.head_dim}"
        return super().unsupported_reason(requirements)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        averages_state: bool,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute causal attention, see Backend. A state takes one call over [v | e], or several."""
        by_distance = None
        if bias is not None:
            assert isinstance(bias, DistanceBias)
            (by_distance,) = bias.weights
        q, k, e = rotated_heads(q, k, state, averages_state, self.rotation_by_kernel)

        def attend_to(values: Tensor) -> Tensor:
            return flex_values(q, k, values, by_distance, document_starts, window)

        return attend_v_and_e(v, e, attend_to)


def flex_values(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    by_distance: Tensor | None,
    document_starts: DocumentStarts,
    window: int | None = None,
) -> Tensor:
    """Compute causal attention to values in one call.

    The kernel looks up the bias when computing a score, and skips masked blocks, so nothing of size N x N exists. On a CPU,
    where only tests run it, the code is not compiled and does make an N x N tensor.

    Args:
        q: Rotated queries [B, N, H, R].
        k: Rotated keys [B, N, L, R].
        v: Values [B, N, L, width].
        by_distance: Bias on the scores, [H, N], or None.
        document_starts: Index of the first token of each token's document, [B, N], or None.
        window: Number of tokens that a token attends to, or None for all earlier ones.

    Returns:
        A v [B, N, H, width].
    """
    queries = q.transpose(1, 2)  # [B, H, N, R]
    keys = k.transpose(1, 2)  # [B, L, N, R]
    values = v.transpose(1, 2)  # [B, L, N, width]
    if q.is_meta:
        # Give each query the mean number of keys in its window. The window counts in both directions, as full attention counts
        # masked pairs.
        num_keys = num_pairs_in_window(q.shape[1], window) // q.shape[1]
        return _attend_on_meta(queries, keys[:, :, :num_keys], values[:, :, :num_keys], by_distance).transpose(1, 2)

    if document_starts is None:
        block_mask = causal_blocks(q.shape[1], q.device, window)
    else:
        block_mask = document_blocks(document_starts, document_starts._version, window)

    attend: Any = flex_attention
    # A compiled block already compiles flex_attention with the rest of the block.
    if q.is_cuda and not torch.compiler.is_compiling():
        attend = _compiled_flex_attention()
    out = attend(
        queries,
        keys,
        values,
        score_mod=_adding_bias(by_distance),
        block_mask=block_mask,
        enable_gqa=q.shape[2] != k.shape[2],
        kernel_options=_kernel_options(q, v, by_distance is not None),
    )
    return out.transpose(1, 2)


def _adding_bias(by_distance: Tensor | None) -> Callable[..., Tensor] | None:
    """Return the function of flex_attention that adds the bias [H, N] to a score, or None without a bias."""
    if by_distance is None:
        return None

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        # Later tokens are masked, but looked up as well.
        distance = (row - column).abs()
        return score + by_distance[head, distance]

    return score_mod


def _kernel_options(q: Tensor, v: Tensor, biased: bool) -> dict[str, int] | None:
    """Return the kernel's tiles, or None for float32 to let torch choose small ones."""
    if v.dtype.itemsize != 2:
        return None
    if biased:
        return BIASED
    if v.shape[-1] > q.shape[-1]:
        return WIDER_VALUES
    return {}


def _attend_on_meta(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    by_distance: Tensor | None,
) -> Tensor:
    """Stand in for flex_attention on the meta device, by an operator that reads, writes and saves as much."""
    if by_distance is None:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    mask = by_distance[:, None, : keys.shape[2]].to(queries.dtype)
    return F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=False, enable_gqa=True)


@cache
def _compiled_flex_attention() -> Callable[..., Any]:
    """Return flex_attention, compiled for each shape.

    A run has few shapes. At the second length torch would switch to kernels for any length, which are slower. Failing to
    compile is an error, because uncompiled code would make an N x N tensor.
    """
    limit_recompilations()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)
