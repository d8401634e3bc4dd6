"""Initial weights, drawn from the seed and the parameter's name alone, so that sharding does not change them."""

import torch
from torch import Tensor, nn

from megatape.model.seeds import seed_of
from megatape.nn.parameters import Uniform, matrix_shape, spec_of

# Rows drawn from one generator. A rank only draws row blocks overlapping its shard.
ROWS = 1024


def initial_block(
    name: str, shape: tuple[int, ...], init: float | Uniform | None, rows: slice, columns: slice, std: float, seed: int
) -> Tensor:
    """Return a block of a parameter's initial value, [rows, columns] in float32.

    Args:
        name: Parameter name.
        shape: Shape of the whole parameter. A vector is a matrix with one column.
        init: Constant, uniform distribution, or None to draw from the normal distribution.
        rows: Rows to return.
        columns: Columns to return.
        std: Standard deviation of the normal distribution.
        seed: Seed of the run.
    """
    if isinstance(init, int | float):
        return torch.full((rows.stop - rows.start, columns.stop - columns.start), float(init))
    num_rows, num_columns = matrix_shape(shape)
    first_block = rows.start // ROWS
    last_block = (rows.stop - 1) // ROWS
    blocks = []
    for block in range(first_block, last_block + 1):
        height = min(ROWS, num_rows - block * ROWS)
        generator = torch.Generator().manual_seed(seed_of(f"{seed}/{name}/{block}", 63, "little"))
        values = torch.empty(height, num_columns)
        if init is None:
            values.normal_(0.0, std, generator=generator)
        else:
            values.uniform_(init.middle - init.bound, init.middle + init.bound, generator=generator)
        blocks.append(values)
    first_row = first_block * ROWS
    return torch.cat(blocks)[rows.start - first_row : rows.stop - first_row, columns]


def initial_weight(name: str, parameter: nn.Parameter, std: float, seed: int) -> Tensor:
    """Return the initial value of an unsharded parameter. Arguments as in initial_block."""
    shape = tuple(parameter.shape)
    num_rows, num_columns = matrix_shape(shape)
    init = spec_of(parameter).init
    return initial_block(name, shape, init, slice(0, num_rows), slice(0, num_columns), std, seed).view(shape)


@torch.no_grad()
def initialize(model: nn.Module, std: float, seed: int) -> None:
    """Give an unsharded model its initial weights.

    Args:
        model: Model of build_model.
        std: Standard deviation of the normal distribution.
        seed: Seed of the run.
    """
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_weight(name, parameter, std, seed))
