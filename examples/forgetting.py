"""Forget gates in one file: each token and head computes a gate, and scores depend on the sum of gates between two tokens.

    megatape pretrain --import examples/forgetting.py --config FILE --set model.encoding=forgetting

score(i, j) += c_i - c_j, where c_i is the sum of a convolution of width 2 over log sigmoid(w h + 4) up to token i. FoX
(megatape/encodings/fox.py) does the same without the convolution, which is here to show how to keep documents apart.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias, SequenceFeatures, TokenFeatures
from megatape.nn.linear import ColumnLinear
from megatape.nn.parameters import parameter
from megatape.registry import ENCODINGS, EncodingEntry


class Gates(TokenFeatures):
    """log sigmoid(w h + 4), [B, N, H/T, 1].

    Attributes:
        gate: w, [H, D], sharded by heads.
    """

    def __init__(self, hidden_size: int, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.multiply_adds = hidden_size * num_heads
        self.gate = ColumnLinear(hidden_size, num_heads, tensor_axis)

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        log_gates = F.logsigmoid(self.gate(h).float() + 4)
        return (log_gates[..., None],)


class Sums(SequenceFeatures):
    """c, [B, N, H/T, 1]: sums of a convolution of width 2, which restarts in each document.

    The carry consists of the last gate and the last sum.

    Attributes:
        weight: Weight of the previous token, [H, 1], sharded by heads.
    """

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.weight = parameter((num_heads, 1), tensor_axis, 0, init=0.5, decay=False)

    def forward(self, features: Features, document_starts: DocumentStarts, carry: Features) -> tuple[Features, Features]:
        (gates,) = features
        if carry:
            last_gate, total = carry
        else:
            last_gate = torch.zeros_like(gates[:, :1])
            total = torch.zeros_like(gates[:, :1])
        before = torch.cat([last_gate, gates[:, :-1]], dim=1)
        if document_starts is not None:
            index = torch.arange(gates.shape[1], device=gates.device)
            is_in_document = index > document_starts  # [B, N]: whether the previous token is in the same document
            before = before * is_in_document[..., None, None]
        weight = self.local_heads(self.weight).float()
        sums = total + (gates + weight * before).cumsum(1)
        return (sums,), (gates[:, -1:], sums[:, -1:])


class Differences(ScoreBias):
    """c_i - c_j.

    Attributes:
        weights: c [B, N, H/T, 1].
    """

    def block(self, weights: tuple[Tensor, ...], rows: slice, columns: slice) -> Tensor:
        c = weights[0].transpose(1, 2)  # [B, H/T, N, 1]
        return c[:, :, rows] - c[:, :, columns].mT


class Forget(LayerBias):
    """c_i - c_j, without parameters."""

    form = Differences

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return features


class Forgetting(Encoding):
    """Encoding with gates, their sums, and a bias of differences between sums."""

    score_bias = "pair"

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return Gates(self.config.hidden_size, self.config.num_heads, tensor_axis)

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return Sums(self.config.num_heads, tensor_axis)

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return Forget()


ENCODINGS["forgetting"] = EncodingEntry(
    f"{__name__}:Forgetting", "forget gates", divides_heads=True, by_layer=True, reads_scores=False
)
