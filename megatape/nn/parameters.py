"""Parameters that carry their initialization, decay and learning-rate scale, and how tensor-parallel ranks divide them."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from megatape.distributed.mesh import Axis
from megatape.errors import UserError

# Matrices of a position encoding are small, and what an optimizer gains by whole matrices is not known for them.
Role = Literal["matrix", "vector", "embedding", "position"]


@dataclass(frozen=True)
class Uniform:
    """Initial values that are uniform between middle - bound and middle + bound."""

    bound: float
    middle: float = 0.0


@dataclass(frozen=True)
class Settings:
    """What initialization, checkpoints and the optimizer read.

    shape: of the whole parameter, of which a rank may hold a block. init: the initial value of every element, or their
    distribution; None for a normal one with standard deviation model.init_std. decay: whether weight decay applies. lr_scale:
    factor on the scheduled learning rate. role: for optimizers that treat weights differently. bounds: lowest and highest
    value, to which every step of the optimizer clips the master weight.
    """

    shape: tuple[int, ...]
    init: float | Uniform | None
    decay: bool
    lr_scale: float
    role: Role
    bounds: tuple[float, float] | None


def parameter(
    shape: tuple[int, ...],
    axis: Axis,
    dim: int | None = None,
    *,
    init: float | Uniform | None = None,
    decay: bool | None = None,
    lr_scale: float = 1.0,
    role: Role | None = None,
    bounds: tuple[float, float] | None = None,
) -> nn.Parameter:
    """An uninitialized parameter with its Settings; model/init.py draws its values.

    shape: of the whole parameter. dim: the dimension along which every rank of `axis` holds an
    equal share, padded where the ranks do not divide it.
    None: every rank holds the whole parameter and uses it on its own tokens or heads. A backward
    pass gives each rank its part of the gradient, and zero/replicated.py sums the parts once a step.
    decay: by default matrices decay and vectors do not. role: by default that of its number of
    dimensions. The rest as in Settings.

    A share is tagged as DeepSpeed expects, with `tensor_model_parallel` and `partition_dim`:
    without the tags the gradient norm is wrong, and so is clipping. Tags survive DeepSpeed's
    partitioning, which changes a parameter in place.
    """
    if len(shape) not in (1, 2):
        raise UserError(f"a parameter has the shape {shape}: give it one or two dimensions, and unflatten it where it is used")
    local = list(shape)
    if dim is not None:
        local[dim] = -(-shape[dim] // axis.size)
    made = nn.Parameter(torch.empty(local))
    is_matrix = len(shape) > 1
    made.settings = Settings(  # type: ignore[attr-defined]
        shape,
        init,
        is_matrix if decay is None else decay,
        lr_scale,
        role or ("matrix" if is_matrix else "vector"),
        bounds,
    )
    if axis.size > 1 and dim is not None:
        made.tensor_model_parallel = True  # type: ignore[attr-defined]
        made.partition_dim = dim  # type: ignore[attr-defined]
    return made


@dataclass(frozen=True)
class Share:
    """The block of a whole parameter that a tensor-parallel rank holds.

    It is `rows` x `columns`, of which the last rows may be padding.
    """

    rows: slice
    columns: slice

    @property
    def width(self) -> int:
        return self.columns.stop - self.columns.start


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a parameter, where a vector is a matrix of one column."""
    assert len(shape) in (1, 2)
    return shape if len(shape) == 2 else (shape[0], 1)


def share_of(made: nn.Parameter, local_shape: tuple[int, ...], axis: Axis) -> Share:
    """The block of a parameter that this rank of `axis` holds. local_shape: of the block."""
    rows, columns = matrix(local_shape)
    divided = getattr(made, "partition_dim", None)
    row, column = (axis.rank * size if dim == divided else 0 for dim, size in enumerate((rows, columns)))
    return Share(slice(row, row + rows), slice(column, column + columns))


def settings(made: nn.Parameter) -> Settings:
    """The settings of a parameter that `parameter` made."""
    return made.settings  # type: ignore[attr-defined]


def never_decay(module: nn.Module) -> None:
    """Exempt all parameters of a module from weight decay."""
    for made in module.parameters():
        made.settings = replace(settings(made), decay=False)  # type: ignore[attr-defined]
