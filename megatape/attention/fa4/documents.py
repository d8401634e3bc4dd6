"""Packed documents in the form that FlashAttention-4 expects."""

from functools import lru_cache

import torch
from torch import Tensor


# All layers get the same tensor, and tensors compare by identity. So the device waits for the host once for each micro-batch.
@lru_cache(maxsize=2)
def document_ends(document_starts: Tensor, version: int) -> Tensor:
    """Return the cumulative lengths of all documents, int32 [documents + 1], beginning with 0 and ending with B N.

    Documents are numbered across samples, and none of them continues in the next sample.

    Args:
        document_starts: Index of the first token of each token's document, [B, N].
        version: Number of in-place changes to `document_starts`. Each one makes the cached result wrong.
    """
    index = torch.arange(document_starts.shape[1], device=document_starts.device)
    is_first = document_starts == index
    first_tokens = is_first.flatten().nonzero().flatten()
    num_tokens = first_tokens.new_tensor([document_starts.numel()])
    return torch.cat([first_tokens, num_tokens]).int()
