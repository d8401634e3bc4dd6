"""Short causal convolution along the sequence, for features that depend on a few earlier tokens.

    y_n = sum over d = 0 .. width - 1 of w_(width - 1 - d) x_(n - d)        x_(n - d) = 0 before the document

Shapes as in model/transformer.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.backend import DocumentStarts
from megatape.encodings.encoding import Features


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
