"""Parameters that declare their initialization, weight decay and learning-rate scale, and their tensor-parallel shards."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from megatape.distributed.mesh import Axis
from megatape.errors import UserError
from megatape.utils.values.rounding import divide_up

# How optimizers treat a weight. Matrices of position encodings have their own role: they are small, and it is unknown whether
# whole-matrix updates (Muon) help them.
Role = Literal["matrix", "vector", "embedding", "position"]


@dataclass(frozen=True)
class Uniform:
    """Uniform distribution from middle - bound to middle + bound."""

    bound: float
    middle: float = 0.0


@dataclass(frozen=True)
class ParameterSpec:
    """Declaration of one parameter, read by initialization, checkpoints and the optimizer.

    Attributes:
        shape: Shape of the whole parameter. A rank may hold a block of it.
        init: Initial value of every element, or their distribution. None for normal with deviation model.init_std.
        decay: Whether weight decay applies.
        lr_scale: Factor on the scheduled learning rate.
        role: Role of the parameter, for optimizers that treat weights differently.
        bounds: Minimum and maximum, to which master weights are clipped after every optimizer step, or None for no bounds.
        sharded_dim: Dimension that tensor-parallel ranks shard, or None if every rank holds the whole parameter.
    """

    shape: tuple[int, ...]
    init: float | Uniform | None
    decay: bool
    lr_scale: float
    role: Role
    bounds: tuple[float, float] | None
    sharded_dim: int | None = None


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
    """Return an uninitialized parameter with its declaration. model/init.py draws the values.

    Args:
        shape: Shape of the whole parameter, one or two dimensions.
        axis: Tensor-parallel ranks.
        dim: Dimension to shard, padded to a multiple of the ranks, or None if every rank holds the whole parameter and uses
            it on its own tokens or heads. Then the rank's backward pass yields a part of the gradient, and
            zero/passes/partial_gradients.py sums the parts once per step.
        init: See ParameterSpec.
        decay: Whether weight decay applies; by default only to matrices.
        lr_scale: See ParameterSpec.
        role: Role of the parameter; by default "matrix" for two dimensions, "vector" for one.
        bounds: See ParameterSpec.

    Raises:
        UserError: The shape does not have one or two dimensions.
    """
    if len(shape) not in (1, 2):
        raise UserError(f"a parameter has the shape {shape}: give it one or two dimensions, and unflatten it where it is used")
    is_matrix = len(shape) == 2
    if decay is None:
        decay = is_matrix
    if role is None:
        role = "matrix" if is_matrix else "vector"

    local_shape = list(shape)
    if dim is not None:
        local_shape[dim] = divide_up(shape[dim], axis.size)
    sharded_dim = dim if axis.size > 1 else None
    weight = nn.Parameter(torch.empty(local_shape))
    _declare(weight, ParameterSpec(shape, init, decay, lr_scale, role, bounds, sharded_dim))
    return weight


def _declare(weight: nn.Parameter, spec: ParameterSpec) -> None:
    """Attach a declaration to a parameter, and the tag by which DeepSpeed recognizes shards in the gradient norm."""
    tagged: Any = weight
    tagged.spec = spec
    if spec.sharded_dim is not None:
        tagged.tensor_model_parallel = True


@dataclass(frozen=True)
class Shard:
    """Block of a parameter on one tensor-parallel rank.

    Attributes:
        rows: Rows in the whole parameter, the last of which may be padding.
        columns: Columns, likewise.
    """

    rows: slice
    columns: slice

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.columns.stop - self.columns.start


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows and columns of a parameter. A vector counts as a single column."""
    if len(shape) == 1:
        return shape[0], 1
    num_rows, num_columns = shape
    return num_rows, num_columns


def shard_of(weight: nn.Parameter, local_shape: tuple[int, ...], axis: Axis) -> Shard:
    """Return the block of a parameter on this rank of `axis`, whose shape is `local_shape`."""
    num_rows, num_columns = matrix_shape(local_shape)
    sharded_dim = spec_of(weight).sharded_dim
    first_row = 0
    first_column = 0
    if sharded_dim == 0:
        first_row = axis.rank * num_rows
    elif sharded_dim == 1:
        first_column = axis.rank * num_columns
    return Shard(slice(first_row, first_row + num_rows), slice(first_column, first_column + num_columns))


def spec_of(weight: nn.Parameter) -> ParameterSpec:
    """Return the declaration of a parameter made by `parameter`."""
    declared: Any = weight
    spec: ParameterSpec = declared.spec
    return spec


def is_sharded(weight: nn.Parameter) -> bool:
    """Whether tensor-parallel ranks hold different parts of a parameter."""
    return spec_of(weight).sharded_dim is not None


def check_declared(module: nn.Module) -> None:
    """Check that all parameters of a module were made by `parameter`. Modules in users' files may have others.

    Raises:
        UserError: A parameter has no declaration, such as the weight of a plain nn.Linear.
    """
    for name, weight in module.named_parameters():
        if not hasattr(weight, "spec"):
            raise UserError(
                f"parameter {name} does not declare its initial value and weight decay: make it by "
                "megatape.nn.parameters.parameter (docs/own_encodings.md)"
            )


def never_decay(module: nn.Module) -> None:
    """Exempt all parameters of a module from weight decay."""
    for weight in module.parameters():
        _declare(weight, replace(spec_of(weight), decay=False))
