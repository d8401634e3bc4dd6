"""Parameters that carry their initialization, decay and learning-rate scale, and how tensor-parallel ranks divide them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from megatape.distributed.mesh import Axis
from megatape.errors import UserError
from megatape.moved_modules import old_names

# How optimizers treat a weight. Matrices of a position encoding have a role of their own: they are small, and whether updating
# them as whole matrices helps is not known.
Role = Literal["matrix", "vector", "embedding", "position"]


@dataclass(frozen=True)
class Uniform:
    """A uniform distribution of initial values between middle - bound and middle + bound."""

    bound: float
    middle: float = 0.0


@dataclass(frozen=True)
class ParameterSpec:
    """Specification of one parameter, read by initialization, checkpoints and the optimizer.

    Attributes:
        shape: Shape of the whole parameter, of which a rank may hold a block.
        init: Initial value of every element, or their distribution; None: a normal one with standard deviation model.init_std.
        decay: Whether weight decay applies.
        lr_scale: Factor on the scheduled learning rate.
        role: Role of the parameter, for optimizers that treat weights differently.
        bounds: Lowest and highest value, to which every step of the optimizer clips the master weight; None: no bounds.
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
    """Return an uninitialized parameter with its ParameterSpec. model/init.py draws its values.

    A share is tagged as DeepSpeed expects, with `tensor_model_parallel` and `partition_dim`: without the tags the gradient norm
    is wrong, and so is clipping. Tags survive DeepSpeed's partitioning, which changes a parameter in place.

    Args:
        shape: Shape of the whole parameter, of one or two dimensions.
        axis: Tensor-parallel ranks.
        dim: Dimension along which every rank holds an equal share, padded if the ranks do not divide it. None: every rank holds
            the whole parameter and uses it on its own tokens or heads. A backward pass gives each rank its part of the
            gradient, and zero/partial_gradients.py sums the parts once a step.
        init: See ParameterSpec.
        decay: Whether weight decay applies; by default to matrices only.
        lr_scale: See ParameterSpec.
        role: Role of the parameter; by default "matrix" or "vector", by its dimensions.
        bounds: See ParameterSpec.

    Raises:
        UserError: The shape has no or more than two dimensions.
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
    made = nn.Parameter(torch.empty(local_shape))
    made.spec = ParameterSpec(shape, init, decay, lr_scale, role, bounds)  # type: ignore[attr-defined]
    if axis.size > 1 and dim is not None:
        made.tensor_model_parallel = True  # type: ignore[attr-defined]
        made.partition_dim = dim  # type: ignore[attr-defined]
    return made


@dataclass(frozen=True)
class Share:
    """The block of a whole parameter that a tensor-parallel rank holds.

    Attributes:
        rows: Rows of the block, of which the last ones may be padding.
        columns: Columns of the block.
    """

    rows: slice
    columns: slice

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.columns.stop - self.columns.start


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns of a parameter. A vector is a matrix of one column."""
    if len(shape) == 1:
        return shape[0], 1
    num_rows, num_columns = shape
    return num_rows, num_columns


def share_of(made: nn.Parameter, local_shape: tuple[int, ...], axis: Axis) -> Share:
    """Return the block of a parameter that this rank of `axis` holds. local_shape: Shape of the block."""
    num_rows, num_columns = matrix(local_shape)
    divided = getattr(made, "partition_dim", None)
    first_row = 0
    first_column = 0
    if divided == 0:
        first_row = axis.rank * num_rows
    elif divided == 1:
        first_column = axis.rank * num_columns
    return Share(slice(first_row, first_row + num_rows), slice(first_column, first_column + num_columns))


def spec_of(made: nn.Parameter) -> ParameterSpec:
    """Return the specification of a parameter that `parameter` made."""
    return made.spec  # type: ignore[attr-defined]


def never_decay(module: nn.Module) -> None:
    """Exempt all parameters of a module from weight decay."""
    for made in module.parameters():
        made.spec = replace(spec_of(made), decay=False)  # type: ignore[attr-defined]


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
