"""Tiles of FlashAttention-4's Hopper kernels for values that are wider than queries, up to twice as wide.

The package chooses tiles by the queries' width R alone. With values of 2R, its tiles need more registers and shared memory than
a multiprocessor has. The tiles here fit, and are the fastest ones measured on an H200 (docs/results/kernels.md).
"""

from collections.abc import Mapping
from typing import NamedTuple

# Samples with more tokens than this use other tiles.
LONG = 2048

# Head sizes R whose kernels compile with the tiles below, without spilled registers. 64 and 128 ran on a GPU.
WIDE_HEAD_DIMS = (16, 32, 48, 64, 112, 128)
# Head sizes up to this one have the tiles of 64, larger ones those of 128.
SMALL_HEAD_DIM = 64

# Arguments of the package's BwdConfig: queries (m) and keys (n) of a tile, pipeline stages, products with swapped operands, and
# how warpgroups divide the products.
BackwardTile = Mapping[str, int | bool]

BACKWARD_64_X_128: BackwardTile = {
    "m_block_size": 64,
    "n_block_size": 128,
    "num_stages_Q": 2,
    "num_stages_dO": 2,
    "num_stages_PdS": 2,
    "SdP_swapAB": True,
    "dKV_swapAB": False,
    "dQ_swapAB": False,
    "AtomLayoutMSdP": 1,
    "AtomLayoutNdKV": 2,
    "AtomLayoutMdQ": 1,
}
BACKWARD_96_X_128: BackwardTile = {
    "m_block_size": 96,
    "n_block_size": 128,
    "num_stages_Q": 2,
    "num_stages_dO": 2,
    "num_stages_PdS": 2,
    "SdP_swapAB": True,
    "dKV_swapAB": False,
    "dQ_swapAB": True,
    "AtomLayoutMSdP": 1,
    "AtomLayoutNdKV": 2,
    "AtomLayoutMdQ": 2,
}
BACKWARD_64_X_96: BackwardTile = {
    "m_block_size": 64,
    "n_block_size": 96,
    "num_stages_Q": 2,
    "num_stages_dO": 2,
    "num_stages_PdS": 1,
    "SdP_swapAB": False,
    "dKV_swapAB": True,
    "dQ_swapAB": False,
    "AtomLayoutMSdP": 1,
    "AtomLayoutNdKV": 1,
    "AtomLayoutMdQ": 1,
}


class ForwardTile(NamedTuple):
    """Queries and keys of a tile."""

    queries: int
    keys: int


def forward_tile(head_dim: int, length: int) -> ForwardTile:
    """Return the tile of the forward pass.

    Args:
        head_dim: Width of queries and keys, R.
        length: Tokens per sample.
    """
    if head_dim <= SMALL_HEAD_DIM:
        return ForwardTile(128, 128)
    if length <= LONG:
        return ForwardTile(128, 112)
    return ForwardTile(128, 80)


def backward_tile(head_dim: int, length: int) -> BackwardTile:
    """Return the tile of the backward pass. Arguments as in `forward_tile`."""
    if head_dim > SMALL_HEAD_DIM:
        return BACKWARD_64_X_96
    # Smaller heads do not compile with the other tile.
    if head_dim == SMALL_HEAD_DIM and length > LONG:
        return BACKWARD_96_X_128
    return BACKWARD_64_X_128
