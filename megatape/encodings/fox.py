"""FoX, the forgetting transformer (Lin et al., arXiv 2503.02130).

Each head forgets earlier tokens, as much as the content of later ones decides:

    score(i, j) = q_i . k_j / sqrt R + c_i - c_j
    c_i = log f_1 + ... + log f_i,    f = sigmoid(W h + b)

So key j is damped by the product f_(j+1) ... f_i of the forget gates after it. Nothing is rotated. b starts at zero.

Shapes as in model/transformer.py.
"""

import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import Decay
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias, SequenceFeatures, TokenFeatures
from megatape.nn.linear import ColumnLinear


class ForgetGates(TokenFeatures):
    """log f of each query head, float32 [B, N, H/T, 1].

    Attributes:
        gate: W [H, D] and b [H], sharded by heads.
    """

    def __init__(self, hidden_size: int, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.multiply_adds = hidden_size * num_heads
        self.gate = ColumnLinear(hidden_size, num_heads, tensor_axis, bias=True, role="position")

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        log_gates = F.logsigmoid(self.gate(h).float())  # [B, N, H/T]
        return (log_gates[..., None],)


class GateSums(SequenceFeatures):
    """c, float64 [B, N, H/T, 1]. The carry is the last token's c.

    The sum continues across documents, because only differences within one document are used. It reaches -11,000 after 16k
    tokens, where neighboring float32 numbers are 1e-3 apart.
    """

    def forward(
        self,
        features: Features,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Features, Features]:
        (log_gates,) = features
        sums = log_gates.double().cumsum(1)
        if carry:
            sums = sums + carry[0]
        last_sum = sums[:, -1:]
        return (sums,), (last_sum,)


class DecayBias(LayerBias):
    """c_i - c_j. No parameters."""

    form = Decay

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        return features


class Fox(Encoding):
    """Forgetting attention."""

    equation = """
        score(i, j) = q_i . k_j / sqrt R + c_i - c_j
        c_i = log f_1 + ... + log f_i,  f = sigmoid(W h + b)
    """
    score_bias = "decay"

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        return ForgetGates(self.config.hidden_size, self.config.num_heads, tensor_axis)

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return GateSums()

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return DecayBias()
