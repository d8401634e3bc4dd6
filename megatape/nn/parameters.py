"""Parameters that declare their initialization, weight decay and learning-rate scale, and their tensor-parallel shards."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from megatape.distributed.mesh import Axis
from megatape.errors import UserError
from megatape.moved_modules import old_names

# How optimizers treat a weight. Matrices of position encodings have their own role: they are small, and it is unknown whether
# whole-matrix updates (Muon) help them.
Role = Literal["matrix", "vector", "embedding", "position"]


@dataclass(frozen=True)
class Uniform:
    """Uniform distribution of initial values, from middle - bound to middle + bound."""

    bound: float
    middle: float = 0.0


@dataclass(frozen=True)
class ParameterSpec:
    """Declaration of one parameter, read by initialization, checkpoints and the optimizer.

    Attributes:
        shape: Shape of the whole parameter. A rank may hold a block of it.
        init: Initial value of every element, or their distribution; None: normal with standard deviation model.init_std.
        decay: Whether weight decay applies.
        lr_scale: Factor on the scheduled learning rate.
        role: Role of the parameter, for optimizers that treat weights differently.
        bounds: Minimum and maximum, to which master weights are clipped after every optimizer step; None: no bounds.
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
    """Return an uninitialized parameter with its declaration. model/init.py draws the values.

    A shard is tagged for DeepSpeed with `tensor_model_parallel` and `partition_dim`. Without these tags, the gradient norm and
    thus clipping would be wrong. The tags survive ZeRO's partitioning, which changes parameters in place.

    Args:
        shape: Shape of the whole parameter, one or two dimensions.
        axis: Tensor-parallel ranks.
        dim: Dimension to shard, padded to a multiple of the ranks. None: every rank holds the whole parameter and uses it on
            its own tokens or heads; its backward pass yields a part of the gradient, and zero/partial_gradients.py sums
            the parts once a step.
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
        local_shape[dim] = -(-shape[dim] // axis.size)
    weight = nn.Parameter(torch.empty(local_shape))
    weight.spec = ParameterSpec(shape, init, decay, lr_scale, role, bounds)  # type: ignore[attr-defined]
    if axis.size > 1 and dim is not None:
        weight.tensor_model_parallel = True  # type: ignore[attr-defined]
        weight.partition_dim = dim  # type: ignore[attr-defined]
    return weight


@dataclass(frozen=True)
class Share:
    """Block of a parameter on one tensor-parallel rank.

    Attributes:
        rows: Rows of the block. The last ones may be padding.
        columns: Columns of the block. The last ones may be padding.
    """

    rows: slice
    columns: slice

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.columns.stop - self.columns.start


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of rows and columns of a parameter. A vector counts as a single column."""
    if len(shape) == 1:
        return shape[0], 1
    num_rows, num_columns = shape
    return num_rows, num_columns


def share_of(weight: nn.Parameter, local_shape: tuple[int, ...], axis: Axis) -> Share:
    """Return the block of a parameter on this rank of `axis`, whose shape is `local_shape`."""
    num_rows, num_columns = matrix(local_shape)
    sharded_dim = getattr(weight, "partition_dim", None)
    first_row = 0
    first_column = 0
    if sharded_dim == 0:
        first_row = axis.rank * num_rows
    elif sharded_dim == 1:
        first_column = axis.rank * num_columns
    return Share(slice(first_row, first_row + num_rows), slice(first_column, first_column + num_columns))


def spec_of(weight: nn.Parameter) -> ParameterSpec:
    """Return the declaration of a parameter made by `parameter`."""
    return weight.spec  # type: ignore[attr-defined]


def never_decay(module: nn.Module) -> None:
    """Exempt all parameters of a module from weight decay."""
    for weight in module.parameters():
        weight.spec = replace(spec_of(weight), decay=False)  # type: ignore[attr-defined]


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
