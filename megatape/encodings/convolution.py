"""Short causal convolution along the sequence, for encodings whose features depend on a few earlier tokens.

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
    """Compute a short causal convolution along the sequence, separately for each channel of a head.

    Args:
        x: Inputs [B, N, heads, size].
        weight: Weights [heads, size, width], the last for the token itself.
        document_starts: Index of the first token of each token's document, [B, N], or None.
        before: Inputs from the call for the tokens before. Empty for the first tokens.

    Returns:
        Weighted sums of each token and the width - 1 tokens before it in its document, [B, N, heads, size], and the inputs that
        the call for the next tokens needs, [B, width - 1, heads, size].
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
