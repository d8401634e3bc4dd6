"""Block masks for flex_attention, telling its kernels which blocks to skip and which to compute without masking.

B samples of N tokens, nb blocks of BLOCK tokens in each.
"""

from collections.abc import Callable
from functools import cache, lru_cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from megatape.utils.values.rounding import divide_up

# Number of tokens in a block.
BLOCK = 128

# Whether a query sees a key, from the sample, head, query and key: flex_attention's mask_mod.
SeesKey = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@cache
def causal_blocks(length: int, device: torch.device, window: int | None = None) -> BlockMask:
    """Return the block mask for samples consisting of one document.

    Args:
        length: Number of tokens.
        device: Device of the samples.
        window: Number of tokens that a token attends to, or None for all earlier ones.
    """

    def sees_key(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        if window is None:
            return column <= row
        return (column <= row) & (column > row - window)

    starts = torch.zeros(1, length, dtype=torch.long, device=device)
    if window is not None:
        starts = (torch.arange(length, device=device) - window + 1).clamp(min=0)[None]
    return _block_mask(starts, sees_key)


# All layers get the same tensor, and tensors compare by identity, so one entry for each window of a model is enough.
@lru_cache(maxsize=4)
def document_blocks(document_starts: Tensor, version: int, window: int | None = None) -> BlockMask:
    """Return the block mask for packed documents.

    Args:
        document_starts: Index of the first token of each token's document, [B, N].
        version: Number of in-place changes to `document_starts`. Each one makes the cached mask wrong.
        window: Number of tokens that a token attends to, or None for all earlier ones.
    """
    starts = document_starts
    if window is not None:
        window_starts = torch.arange(starts.shape[1], device=starts.device) - window + 1
        starts = torch.maximum(starts, window_starts)

    def sees_key(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (column >= starts[batch, row])

    return _block_mask(starts, sees_key)


def _block_mask(document_starts: Tensor, sees_key: SeesKey) -> BlockMask:
    """Return the result of torch's create_block_mask for `sees_key`, without evaluating all N x N pairs.

    A key block is hidden from a query block if it comes later, or before all documents in the query block.

    Args:
        document_starts: Index of the first token that each token sees, in its document and its window, [B, N].
        sees_key: Mask of single pairs, for blocks that are only partly visible.
    """
    length = document_starts.shape[1]
    num_blocks = divide_up(length, BLOCK)
    num_padded = num_blocks * BLOCK - length
    padding = document_starts[:, -1:].expand(-1, num_padded)
    starts = torch.cat([document_starts, padding], dim=1).unflatten(1, (num_blocks, BLOCK))  # [B, nb, BLOCK]
    earliest_start = starts.amin(-1)[..., None]  # [B, nb, 1]
    latest_start = starts.amax(-1)[..., None]  # [B, nb, 1]

    block = torch.arange(num_blocks, device=document_starts.device)
    first_key = block * BLOCK
    not_later = block <= block[:, None]  # [nb, nb]: blocks of queries, blocks of keys
    earlier = block < block[:, None]
    any_visible = not_later & (earliest_start < first_key + BLOCK)  # [B, nb, nb]
    all_visible = earlier & (latest_start <= first_key)
    if num_padded:
        # torch never calls a block with fewer queries full.
        is_full_length = block < num_blocks - 1
        all_visible = all_visible & is_full_length[:, None]

    partial_counts, partial_blocks = _chosen_first((any_visible & ~all_visible)[:, None])
    full_counts, full_blocks = _chosen_first(all_visible[:, None])
    return BlockMask.from_kv_blocks(
        partial_counts,
        partial_blocks,
        full_counts,
        full_blocks,
        BLOCK_SIZE=BLOCK,
        mask_mod=sees_key,
        seq_lengths=(length, length),
    )


def _chosen_first(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen key blocks per row, [B, 1, nb], and the block indices with the chosen ones first.

    Args:
        chosen: Whether a row of query blocks chooses a key block, [B, 1, nb, nb].
    """
    counts = chosen.sum(-1, dtype=torch.int32)
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return counts, order.int().contiguous()
