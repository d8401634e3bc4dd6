"""Attention and MLP of tensor-parallel ranks, which gather the tokens of all ranks before their linear layers.

Shapes as in model/transformer.py. Blocks that save memory use these classes on one rank as well, because their input may come
with a Remat.
"""

from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.rotation import PositionState
from megatape.distributed.layout import tokens_to_channels
from megatape.encodings.encoding import Features
from megatape.model.attention import Attention
from megatape.model.mlp import MLP
from megatape.nn.forward_context import changed_context
from megatape.nn.linear import project
from megatape.nn.remat.gathered_input import GatheredInput, begin_gather
from megatape.nn.remat.remat import Remat


class TensorParallelAttention(Attention):
    """Attention of this rank's heads, with two exchanges in flight while queries, keys and values are projected."""

    def forward(
        self, h: Tensor, state: PositionState, document_starts: DocumentStarts = None, *, remat: Remat | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See Attention. remat: How the backward pass rebuilds h, or None if autograd saves it."""
        axis = self.layout.tensor_axis
        gathered = begin_gather(h, axis, remat)
        exchange = tokens_to_channels(self.delta_for_attention(state), axis)
        q, k, v = self.gathered_heads(gathered)
        features = self.gathered_features(gathered, q, k)
        del gathered  # Frees the tokens of other ranks: only the projections need them.
        state = PositionState(state.initial, exchange.wait())

        content, attended_state = self.encode_and_attend(q, k, v, features, state, document_starts)
        return self.output(content.flatten(2)), attended_state

    def gathered_heads(self, gathered: GatheredInput) -> tuple[Tensor, Tensor, Tensor]:
        """Return `heads` of an input being gathered."""
        return self.split_heads(*project(gathered, self.query, self.key, self.value))

    def gathered_features(self, gathered: GatheredInput, q: Tensor, k: Tensor) -> Features:
        """Return `features` of an input being gathered."""
        if gathered.remat is None:
            return self.features(gathered.whole, q, k)
        # Encodings read the input as a plain tensor, so their layers find its Remat in the forward context.
        with changed_context(shared_remat=gathered.remat):
            return self.features(gathered.whole, q, k)


class TensorParallelMLP(MLP):
    """MLP with this rank's share of the inner units."""

    def forward(self, h: Tensor, *, remat: Remat | None = None) -> Tensor:
        """Return the output for h. remat: How the backward pass rebuilds h, or None if autograd saves it."""
        gate, up = project(begin_gather(h, self.tensor_axis, remat), self.gate, self.up)
        return self.multiply(gate, up)
