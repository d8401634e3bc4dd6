"""Initial weights: a function of the seed and the parameter's name only, so sharding does not change them."""

import hashlib

import torch
from torch import Tensor, nn

from megatape.nn.parameters import Uniform, matrix, spec_of

ROWS = 1024  # drawn from one generator; a rank draws only the blocks that overlap its share


def initial_block(
    name: str, shape: tuple[int, ...], init: float | Uniform | None, rows: slice, columns: slice, std: float, seed: int
) -> Tensor:
    """Rows and columns of the float32 initial value of the parameter `name`, whose whole shape is `shape`.

    init: as in ParameterSpec; `std` is the standard deviation of the normal distribution. A vector is a matrix of one column.
    """
    if isinstance(init, int | float):
        return torch.full((rows.stop - rows.start, columns.stop - columns.start), float(init))
    (length, width), first = matrix(shape), rows.start // ROWS
    blocks = []
    for block in range(first, (rows.stop - 1) // ROWS + 1):
        height = min(ROWS, length - block * ROWS)
        digest = hashlib.sha256(f"{seed}/{name}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        values = torch.empty(height, width)
        if init is None:
            values.normal_(0.0, std, generator=generator)
        else:
            values.uniform_(init.middle - init.bound, init.middle + init.bound, generator=generator)
        blocks.append(values)
    return torch.cat(blocks)[rows.start - first * ROWS : rows.stop - first * ROWS, columns]


def initial_weight(name: str, parameter: nn.Parameter, std: float, seed: int) -> Tensor:
    """The initial value of a parameter that one rank holds whole.

    std: standard deviation, unless its settings say otherwise.
    """
    shape = tuple(parameter.shape)
    rows, columns = (slice(0, size) for size in matrix(shape))
    return initial_block(name, shape, spec_of(parameter).init, rows, columns, std, seed).view(shape)
