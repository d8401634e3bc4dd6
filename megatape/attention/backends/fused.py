"""Attention by our own Triton kernels, on GPUs: content and position state in one pass, values of both read where they lie.

Shapes as in model/transformer.py. The kernels are imported when the first layer runs: only then must triton be installed.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from megatape.attention.backend import WIDEST, AttentionRequirements, Backend, DocumentStarts
from megatape.attention.bias import DistanceBias, ScoreBias
from megatape.attention.rotation import PositionState, rotate_qk

MAX_HEAD_DIM = 128  # wider heads do not fit the registers
DTYPES = (torch.float32, torch.bfloat16)


class Fused(Backend):
    """Attention in fused kernels on NVIDIA GPUs.

    Plain attention, with a bias by distance or without, and attention that moves the state, with document masks and grouped
    queries.

    It refuses a bias by pair, such as FIRE's network of 32 units, which would take a dozen times the time of attention itself
    (docs/kernels.md).
    """

    def unsupported_reason(self, need: AttentionRequirements) -> str | None:
        if need.bias == "pair":
            return "computes no bias of pairs of tokens"
        if need.moves and need.bias != "none":
            return "has no kernel that moves the position state under a bias on the scores"
        if need.device_type != "cuda":
            return f"is compiled for GPUs, and the device is {need.device_type!r}"
        if find_spec("triton") is None:
            return "needs the package triton, which is not installed"
        if need.dtype not in DTYPES:
            return f"computes in float32 or bfloat16, not in {need.dtype}"
        if need.head_dim > MAX_HEAD_DIM or need.head_dim % 2:
            return f"needs an even head_dim of at most {MAX_HEAD_DIM}, and model.head_dim is {need.head_dim}"
        return super().unsupported_reason(need)

    def is_preferred_for(self, need: AttentionRequirements) -> bool:
        """Before flex_attention, and before one call of sdpa over [v | e], which has to be written first, and split."""
        faster = need.masked or need.bias == "distance" or (need.moves and 2 * need.head_dim <= WIDEST)
        return faster and need.dtype == torch.bfloat16 and self.unsupported_reason(need) is None

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        move: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """One pass over v and e, where queries and keys are rotated as they are loaded.

        Where the ablations' e is wider than the heads, they are rotated before, and e takes a pass for each part of their
        width.
        """
        from megatape.attention.kernels.attention import fused_attention

        by_distance = None
        size = v.shape[-1]
        if bias is not None:
            assert isinstance(bias, DistanceBias)
            (by_distance,) = bias.weights
        if state is None or (state.initial is not None and state.initial.shape[-1] == size):
            return fused_attention(q, k, v, state, by_distance, document_starts, move)
        q, k = rotate_qk(q, k, state)
        if not move:
            return fused_attention(q, k, v, None, by_distance, document_starts, False)
        e = state.tensor(k.shape[2]).to(v.dtype)
        content, *parts = (
            fused_attention(q, k, values, None, None, document_starts, False)[0] for values in (v, *e.split(size, dim=-1))
        )
        return content, torch.cat(parts, dim=-1)
