"""Layout of a model: the ranks that its weights and its samples are distributed over (distributed/layout.py).

Context-parallel ranks split a sample everywhere, in attention too. Sequence-parallel ranks split a context-parallel rank's
tokens, except in attention: there they distribute its heads, and each of them has all these tokens. Shapes as in
model/transformer.py.
"""

from dataclasses import dataclass

from megatape.distributed.layout import MaybeTensor, local_tokens, zigzag
from megatape.distributed.mesh import SINGLE, Axis


@dataclass(frozen=True)
class Layout:
    """Ranks that a model is distributed over, by default one rank. Tensors they split take no gradient, and None stays None.

    Attributes:
        tensor_axis: Tensor-parallel ranks, sharding the weights.
        sequence_axis: Sequence-parallel ranks, splitting samples outside attention.
        context_axis: Context-parallel ranks, splitting samples everywhere.
    """

    tensor_axis: Axis = SINGLE
    sequence_axis: Axis = SINGLE
    context_axis: Axis = SINGLE

    def in_attention(self, x: MaybeTensor) -> MaybeTensor:
        """Return the tokens [B, M/P] of samples [B, M] that this rank attends with."""
        return zigzag(x, self.context_axis)

    def local(self, x: MaybeTensor) -> MaybeTensor:
        """Return the tokens [B, M/(P S)] of samples [B, M] that this rank computes outside attention."""
        return local_tokens(self.in_attention(x), self.sequence_axis)


SINGLE_RANK = Layout()
