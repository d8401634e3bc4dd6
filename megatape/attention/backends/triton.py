"""Attention by our own Triton kernels on GPUs, in one pass over content and position state without copying either.

Shapes as in model/transformer.py. Kernels are imported by the first layer, so triton is only needed on GPUs.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from megatape.attention.backend import AttentionRequirements, Backend, DocumentStarts
from megatape.attention.bias import Decay, DistanceBias, ScoreBias
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.attention.split_values import MAX_VALUE_WIDTH

# Wider heads do not fit into registers.
MAX_HEAD_DIM = 128
DTYPES = (torch.float32, torch.bfloat16)


class TritonKernels(Backend):
    """Attention by our Triton kernels on NVIDIA GPUs, with document masks, windows and grouped queries.

    Supports plain attention, biases by distance or by sums of gates, and moving the state, also under gates. Other biases by
    pair are not supported: FIRE's network of 32 units, for example, would take about twelve times as long as attention itself
    (docs/kernels.md).
    """

    has_windows = True

    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        if requirements.bias == "pair":
            return "computes no bias of pairs of tokens"
        if requirements.averages_state and requirements.bias == "distance":
            return "has no kernel that moves the position state under a bias by distance"
        if requirements.device_type != "cuda":
            return f"is compiled for GPUs, and the device is {requirements.device_type!r}"
        if find_spec("triton") is None:
            return "needs the package triton, which is not installed"
        if requirements.dtype not in DTYPES:
            return f"computes in float32 or bfloat16, not in {requirements.dtype}"
        if requirements.head_dim > MAX_HEAD_DIM or requirements.head_dim % 2:
            return f"needs an even head_dim of at most {MAX_HEAD_DIM}, and model.head_dim is {requirements.head_dim}"
        return super().unsupported_reason(requirements)

    def is_preferred_for(self, requirements: AttentionRequirements) -> bool:
        """Whether these kernels are faster than flex_attention, and than one call of sdpa copying [v | e].

        They are also preferred if gradients must repeat, because each program owns its outputs.
        """
        if requirements.dtype != torch.bfloat16:
            return False
        moves_in_one_call = requirements.averages_state and 2 * requirements.head_dim <= MAX_VALUE_WIDTH
        is_sparse = requirements.masked or requirements.windowed
        faster = is_sparse or requirements.bias == "distance" or moves_in_one_call
        is_preferred = faster or requirements.deterministic
        return is_preferred and self.unsupported_reason(requirements) is None

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
        """Compute causal attention, see Backend.

        Usually takes a single pass over v and e, rotating queries while loading them. Some ablations have an e wider than the
        heads: then queries and keys are rotated beforehand, and e is split into parts as wide as a head, taking a pass each.
        """
        from megatape.attention.kernels.attention import fused_attention

        by_distance = None
        decay = None
        if isinstance(bias, DistanceBias):
            (by_distance,) = bias.weights
        elif bias is not None:
            assert isinstance(bias, Decay)
            (sums,) = bias.weights
            decay = sums.squeeze(-1)

        head_dim = v.shape[-1]
        if state is None or (state.initial is not None and state.initial.shape[-1] == head_dim):
            return fused_attention(q, k, v, state, by_distance, decay, document_starts, averages_state, window)

        q, k = rotate_qk(q, k, state)
        if not averages_state:
            return fused_attention(q, k, v, None, by_distance, decay, document_starts, False, window)

        e = state.tensor(k.shape[2]).to(v.dtype)
        attended = []
        for values in (v, *e.split(head_dim, dim=-1)):
            attended_values, _ = fused_attention(q, k, values, None, None, decay, document_starts, False, window)
            attended.append(attended_values)
        content, *state_parts = attended
        return content, torch.cat(state_parts, dim=-1)
