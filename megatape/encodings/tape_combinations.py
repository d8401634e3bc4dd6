"""TAPE (arXiv 2501.00712) combined with FoX's forget gates (arXiv 2503.02130) or Selective RoPE's angles (arXiv 2511.17388).

Shapes as in tape.py.
"""

import torch
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.config import ModelConfig
from megatape.distributed.layout import all_tokens, channels_to_tokens, heads_to_tokens, tokens_to_heads
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Features, StateInitializer
from megatape.encodings.fox import Fox
from megatape.encodings.rope import rotated_size
from megatape.encodings.selective_rope import Phases, Turns, rotations
from megatape.encodings.tape import Tape


class TapeFox(Tape, Fox):
    """TAPE with forget gates: A averages both values and position tensor, so it forgets both.

    With all gates open this is TAPE. Without updates of e it is RoPE with forget gates, "FoX (RoPE)" in FoX's paper.
    """

    equation = """
        score(i, j) = (q_i turned by e_i) . (k_j turned by e_j) / sqrt R + c_i - c_j
        e <- as in tape
    """


class SelectiveStart(StateInitializer):
    """Initial e: rotations by Selective RoPE's phi, computed once from the embedded tokens.

    phi restarts with each document. Before the document, each channel has turned by an angle of its own. This would not cancel,
    as it does in Selective RoPE, because TAPE's feed-forward update mixes channels.

    Attributes:
        turns: z of Selective RoPE, computed from the embedded tokens.
        phases: phi of Selective RoPE, computed from z.
    """

    def __init__(self, config: ModelConfig, tensor_axis: Axis) -> None:
        super().__init__()
        self.tensor_axis = tensor_axis
        self.head_dim = config.head_dim
        self.turns = Turns(config.hidden_size, config.num_kv_heads, rotated_size(config), tensor_axis)
        self.phases = Phases(config.num_kv_heads, rotated_size(config), tensor_axis)
        self.multiply_adds = self.turns.multiply_adds

    def forward(
        self,
        x: Tensor,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Tensor, Features]:
        whole_x = all_tokens(x, self.tensor_axis)
        # z does not depend on queries and keys.
        features = self.turns(whole_x, x, x)
        features = tokens_to_heads(self.sequence, *features)
        (phi,), carry = self.phases(features, document_starts, carry)  # [B, N, L/T, R/2]
        if document_starts is not None:
            phi = phi - _phi_before_document(phi, document_starts)
        initial = rotations(torch.zeros_like(phi[:, :1]), self.head_dim)
        delta = rotations(phi, self.head_dim) - initial  # [B, N, L/T, R]
        (delta,) = heads_to_tokens(self.sequence, delta.to(x.dtype))
        return channels_to_tokens(delta, self.tensor_axis), carry


def _phi_before_document(phi: Tensor, document_starts: Tensor) -> Tensor:
    """Return phi [B, N, L, R/2] just before each token's document, zero for the first document."""
    before = torch.cat([torch.zeros_like(phi[:, :1]), phi[:, :-1]], dim=1)
    first_tokens = document_starts[..., None, None].expand_as(phi)
    return before.gather(1, first_tokens)


class TapeSelectiveRope(Tape):
    """TAPE with e starting as Selective RoPE's rotations, so positions only depend on content."""

    equation = """
        e = R(phi), phi of the embedded tokens as in selective_rope
        score, e <- as in tape
    """

    def state(self, position_ids: Tensor) -> Tensor:
        return super().state(torch.zeros_like(position_ids))

    def start(self, tensor_axis: Axis) -> StateInitializer:
        return SelectiveStart(self.config, tensor_axis)
