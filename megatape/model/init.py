"""Initial weights: a function of the seed and the parameter's name alone, so that no way of sharding changes them."""

import hashlib

import torch
from torch import Tensor

ROWS = 1024  # rows drawn from one generator: whoever owns part of a parameter draws only the blocks it touches


def initial_block(name: str, shape: tuple[int, ...], rows: slice, columns: slice, std: float, seed: int) -> Tensor:
    """The given rows and columns of the float32 initial value of the parameter `name`, whose whole shape is `shape`.

    Norms are one. TAPE's gain and W_up are zero, so that training starts from rotary positions. All else is normal with
    standard deviation `std`. A vector counts as a matrix of one column."""
    size = (rows.stop - rows.start, columns.stop - columns.start)
    if name.endswith("norm.weight"):
        return torch.ones(size)
    if name.endswith(("position.gain", "position.up")):
        return torch.zeros(size)
    first = rows.start // ROWS
    blocks = []
    for block in range(first, (rows.stop - 1) // ROWS + 1):
        height = min(ROWS, shape[0] - block * ROWS)
        digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        blocks.append(torch.empty(height, shape[1]).normal_(0.0, std, generator=generator))
    return torch.cat(blocks)[rows.start - first * ROWS : rows.stop - first * ROWS, columns]


def initial_weight(name: str, shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    """The whole initial value."""
    columns = slice(0, shape[1] if len(shape) > 1 else 1)
    return initial_block(name, shape, slice(0, shape[0]), columns, std, seed).view(shape)
