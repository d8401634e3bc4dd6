"""Tile sizes of the attention kernels, by head size and the GPU's shared memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from megatape.attention.kernels.backward import keys_kernel, queries_kernel
from megatape.attention.kernels.distances import distances_kernel
from megatape.attention.kernels.forward import forward_kernel
from megatape.attention.kernels.tiles import width
from megatape.nn.kernels import devices
from megatape.nn.kernels.launch import Kernel

# Maximum shared memory per program on an A100.
A100_SHARED_BYTES = 163 * 1024


@dataclass(frozen=True)
class Tile:
    """Tile sizes of a Triton kernel.

    Attributes:
        queries: Queries per program and step.
        keys: Keys per program and step.
        warps: Warps per program.
        stages: Number of pipeline stages.
    """

    queries: int
    keys: int
    warps: int
    stages: int


# Tiles by kernel and head size in bfloat16. On an H200, each is the fastest of up to 17 tiles tried, or within 2% of the
# fastest (docs/results/speed.md).
TILES = {
    (forward_kernel, 64): Tile(queries=64, keys=64, warps=4, stages=3),
    (forward_kernel, 128): Tile(queries=128, keys=64, warps=8, stages=3),
    (queries_kernel, 64): Tile(queries=64, keys=64, warps=4, stages=2),
    (queries_kernel, 128): Tile(queries=128, keys=64, warps=8, stages=2),
    (keys_kernel, 64): Tile(queries=64, keys=64, warps=4, stages=2),
    (keys_kernel, 128): Tile(queries=32, keys=128, warps=8, stages=2),
    (distances_kernel, 64): Tile(queries=64, keys=64, warps=8, stages=2),
    (distances_kernel, 128): Tile(queries=64, keys=64, warps=8, stages=2),
}
# Tiles for devices with less shared memory, as large as it allows, hardly spilling registers inside the loops. They were
# compiled for these devices, but not measured.
TILES_BELOW_H100 = {
    (forward_kernel, 128): Tile(queries=64, keys=64, warps=8, stages=2),
    (queries_kernel, 128): Tile(queries=128, keys=32, warps=8, stages=2),
    (keys_kernel, 128): Tile(queries=64, keys=64, warps=8, stages=2),
}
TILES_BELOW_A100 = TILES_BELOW_H100 | {
    (queries_kernel, 128): Tile(queries=64, keys=32, warps=4, stages=2),
    (keys_kernel, 128): Tile(queries=32, keys=64, warps=8, stages=2),
}
# Tile for float32, used by all kernels.
FLOAT_TILE = Tile(queries=32, keys=32, warps=8, stages=1)

# Tiles to try, by name of the kernel.
_trial_tiles: dict[str, Tile] = {}


@contextmanager
def trial_tile(kernel: str, tile: Tile) -> Iterator[None]:
    """Run a kernel with another tile inside the `with` block.

    Args:
        kernel: Kernel name.
        tile: Tile replacing all tiles above.
    """
    _trial_tiles[kernel] = tile
    try:
        yield
    finally:
        del _trial_tiles[kernel]


def select_tile(kernel: Kernel, x: Tensor) -> Tile:
    """Return the tile of a kernel by dtype, head size and device of x."""
    if kernel.__name__ in _trial_tiles:
        return _trial_tiles[kernel.__name__]
    if x.dtype == torch.float32:
        return FLOAT_TILE
    key = kernel, max(width(x.shape[-1]), 64)
    available_bytes = devices.shared_memory(x.device)
    if available_bytes < A100_SHARED_BYTES and key in TILES_BELOW_A100:
        return TILES_BELOW_A100[key]
    if available_bytes < devices.H100_SHARED_BYTES and key in TILES_BELOW_H100:
        return TILES_BELOW_H100[key]
    return TILES[key]
