"""Token embedding and output head, with the vocabulary sharded across tensor-parallel ranks.

Each rank holds ceil(V / T) rows. On the last ranks, some of them may be padding. Shapes as in model/transformer.py.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from megatape.distributed.collectives import gather_tokens, scatter_sum_tokens
from megatape.distributed.layout import local_rows
from megatape.distributed.mesh import SINGLE, Axis
from megatape.nn.logits import mask_padding, soft_cap
from megatape.nn.loss import LossFormula, cross_entropy
from megatape.nn.parameters import parameter


class VocabularyEmbedding(nn.Module):
    """Token embedding, [B, N] -> [B, N/T, D].

    Attributes:
        weight: This rank's rows, [ceil(V / T), D].
    """

    def __init__(self, vocab_size: int, hidden_size: int, axis: Axis = SINGLE) -> None:
        super().__init__()
        self.axis = axis
        self.weight = parameter((vocab_size, hidden_size), axis, 0, role="embedding")

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of this rank's tokens, [B, N/T, D], for the ids of all ranks' tokens, [B, N]."""
        if self.axis.size == 1:
            return F.embedding(tokens, self.weight)
        rows, is_local = local_rows(tokens, self.weight.shape[0], self.axis)
        # Only one rank has the row of a token. The others add zeros.
        local_embeddings = F.embedding(rows, self.weight) * is_local[..., None]
        return scatter_sum_tokens(local_embeddings, self.axis)


class VocabularyHead(nn.Module):
    """Output matrix. Computes logits, or the loss.

    Attributes:
        weight: This rank's rows, [ceil(V / T), D], or None if tied. Callers then pass the embedding's weight.
        formula: Loss as a function of the logits.
    """

    def __init__(self, hidden_size: int, formula: LossFormula, tied: bool = False) -> None:
        super().__init__()
        self.axis = formula.axis
        self.formula = formula
        self.weight = None
        if not tied:
            self.weight = parameter((formula.vocab_size, hidden_size), self.axis, 0, role="embedding")

    def forward(self, x: Tensor, targets: Tensor | None, tied: Tensor | None) -> Tensor:
        """Return the loss or, without targets, the logits.

        Args:
            x: Normalized content of this rank's tokens, [B, N/T, D].
            targets: Target ids or IGNORE_INDEX of all tokens, [B, N], or None.
            tied: Weight of the embedding if it is tied, or None.

        Returns:
            Float32 sum of the cross entropies, the same on all ranks; without targets see `logits`.
        """
        if targets is None:
            return self.logits(x, tied)
        return cross_entropy(x, self._weight(tied), targets, self.formula)

    def logits(self, x: Tensor, tied: Tensor | None) -> Tensor:
        """Return this rank's part of the logits, [B, N/T, D] -> [B, N, ceil(V / T)]. Padding rows get minus infinity."""
        logits = F.linear(gather_tokens(x, self.axis), self._weight(tied))
        if self.formula.softcap is not None:
            logits = soft_cap(logits, self.formula.softcap)
        return mask_padding(logits, self.formula.vocab_size, self.axis)

    def _weight(self, tied: Tensor | None) -> Tensor:
        weight = self.weight if tied is None else tied
        assert weight is not None
        return weight
