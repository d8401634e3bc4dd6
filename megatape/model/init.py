"""Initial weights: a function of the seed and the parameter's name alone, so that no way of sharding changes them."""

import hashlib

import torch
from torch import Tensor

# What starts as a constant, by the end of its name.
CONSTANTS = {
    "norm.weight": 1.0,
    # Zero gain and W_up: TAPE starts from rotary positions.
    "position.gain": 0.0,
    "position.up": 0.0,
    # FIRE's scalars and biases.
    "bias.log_scale": 0.1,
    "bias.threshold": 1.0,
    "bias.inner_bias": 0.0,
    "bias.outer_bias": 0.0,
}
ROWS = 1024  # rows drawn from one generator: whoever owns part of a parameter draws only the blocks it touches


def initial_block(name: str, shape: tuple[int, ...], rows: slice, columns: slice, std: float, seed: int) -> Tensor:
    """The given rows and columns of the float32 initial value of the parameter `name`, whose whole shape is `shape`.

    A constant, or normal with standard deviation `std`. A vector counts as a matrix of one column."""
    size = (rows.stop - rows.start, columns.stop - columns.start)
    for ending, value in CONSTANTS.items():
        if name.endswith(ending):
            return torch.full(size, value)
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
