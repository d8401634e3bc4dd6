"""Short causal convolution along the sequence, for features that depend on a few earlier tokens.

    y_n = sum over d = 0 .. width - 1 of w_(width - 1 - d) x_(n - d)        x_(n - d) = 0 before the document

`path` and `rope_conv` convolve the same features, W_up W_down h, with the same width.

Shapes as in model/transformer.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Features, SequenceFeatures, TokenFeatures
from megatape.nn.linear_function import linear
from megatape.nn.parameters import Uniform, parameter

# Inner size of W_up W_down.
RANK = 32
# Width of the convolution.
WIDTH = 3


class LowRankFeatures(TokenFeatures):
    """W_up W_down h, float32 [B, N, L/T, R].

    Attributes:
        down: W_down, [32, D], on all tensor-parallel ranks.
        up: W_up, [L R, 32], sharded by heads.
    """

    def __init__(self, hidden_size: int, num_channels: int, head_dim: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.head_dim = head_dim
        size = num_channels * head_dim
        self.multiply_adds = RANK * (hidden_size + size)
        self.down = parameter((RANK, hidden_size), tensor_axis, role="position")
        self.up = parameter((size, RANK), tensor_axis, 0, role="position")

    def forward(self, h: Tensor, q: Tensor, k: Tensor) -> Features:
        z = F.linear(linear(h, self.down), self.up)
        return (z.unflatten(-1, (-1, self.head_dim)).float(),)


class ConvolvedFeatures(SequenceFeatures):
    """SiLU of the convolution of one feature, [B, N, L/T, R]. The carry has the last tokens' inputs of the convolution.

    Attributes:
        weight: Weights of the convolution, [L R, 3], sharded by heads.
    """

    def __init__(self, num_channels: int, head_dim: int, tensor_axis: Axis) -> None:
        super().__init__()
        shape = (num_channels * head_dim, WIDTH)
        self.weight = parameter(shape, tensor_axis, 0, init=Uniform(WIDTH**-0.5), role="vector")

    def forward(
        self,
        features: Features,
        document_starts: DocumentStarts,
        carry: Features,
    ) -> tuple[Features, Features]:
        (z,) = features
        num_channels = z.shape[2]
        weight = self.local_heads(self.weight).float().unflatten(0, (num_channels, -1))  # [L/T, R, 3]
        mixed, inputs = causal_convolution(z, weight, document_starts, carry)
        return (F.silu(mixed),), (inputs,)


def causal_convolution(
    x: Tensor,
    weight: Tensor,
    document_starts: DocumentStarts,
    before: Features,
) -> tuple[Tensor, Tensor]:
    """Convolve each channel of each head on its own.

    Args:
        x: Inputs [B, N, heads, size].
        weight: Weights [heads, size, width]. The last one is for the token itself.
        document_starts: Index of the first token in each token's document, [B, N], or None.
        before: Last inputs of the previous tokens' call, [B, width - 1, heads, size]. Empty for the first tokens.

    Returns:
        Outputs y, [B, N, heads, size], and the last inputs for the next tokens' call, [B, width - 1, heads, size].
    """
    *earlier_weights, own_weight = weight.unbind(-1)
    num_earlier = len(earlier_weights)
    length = x.shape[1]
    if before:
        inputs = torch.cat([*before, x], dim=1)  # [B, width - 1 + N, heads, size]
    else:
        inputs = F.pad(x, (0, 0, 0, 0, num_earlier, 0))

    total = x * own_weight
    for distance, distance_weight in enumerate(reversed(earlier_weights), start=1):
        first = num_earlier - distance
        shifted = inputs[:, first : first + length]
        if document_starts is not None:
            index = torch.arange(length, device=x.device)
            in_document = index - distance >= document_starts  # [B, N]
            shifted = shifted * in_document[..., None, None]
        total = total + shifted * distance_weight
    return total, inputs[:, length:]
