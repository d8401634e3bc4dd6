"""TAPE's update by our kernels as one differentiable function. Shapes as in encodings/tape.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatape.encodings.kernels.update_kernels import update_backward_kernel, update_kernel
from megatape.encodings.kernels.update_settings import num_programs, num_tiles, select_settings
from megatape.nn.kernels.launch import Kernel, launch
from megatape.utils.pytorch.operators import drop_nones, empty_copies, operator, restore_nones

# Smallest size in a matrix product.
MIN_SIZE = 16


@dataclass(frozen=True)
class Products:
    """Number of matrix products per tile.

    Attributes:
        weight: Products of two [ROWS, ROWS] and [ROWS, I] matrices, in any order.
        state: Products of two [ROWS, ROWS] and [ROWS, R] matrices, in any order.
    """

    weight: int
    state: int


PRODUCTS = {
    update_kernel: Products(weight=1, state=1),
    update_backward_kernel: Products(weight=3, state=2),
}


class Inputs(NamedTuple):
    """Tensors that the update reads.

    Attributes:
        initial: e0, float32 [B, N, 1, R].
        delta: D [B, N, L, R], or None.
        attended: U = A e [B, N, H, R], or None if attention does not move the state.
        gain: g [H], or None.
        active: a [B, N, I].
        up: W_up [I, L].
        down: W_down [L, I].
    """

    initial: Tensor
    delta: Tensor | None
    attended: Tensor | None
    gain: Tensor | None
    active: Tensor
    up: Tensor
    down: Tensor

    def regular(self) -> "Inputs":
        """Return contiguous tensors, except for `attended`, see `_with_regular_heads`."""
        delta = self.delta
        if delta is not None:
            delta = delta.contiguous()
        attended = self.attended
        if attended is not None:
            attended = _with_regular_heads(attended)
        return self._replace(
            initial=self.initial.contiguous(),
            delta=delta,
            attended=attended,
            active=self.active.contiguous(),
        )


class _Update(torch.autograd.Function):
    """Delta D' of the position tensor after both updates in a layer, [B, N, L, R] in the dtype of `active`.

    Takes the fields of Inputs.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Any) -> Tensor:
        inputs = Inputs(*tensors).regular()
        ctx.save_for_backward(*inputs)
        return _forward(inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        inputs = Inputs(*ctx.saved_tensors)
        results = _backward(inputs, d_out.contiguous())
        has_delta = inputs.delta is not None
        has_attended = inputs.attended is not None
        d_active, d_weights, d_delta, d_attended = restore_nones(results, True, True, has_delta, has_attended)
        d_gain, d_up, d_down = d_weights.split(_weight_sizes(inputs))
        if inputs.gain is None:
            d_gain = None
        return None, d_delta, d_attended, d_gain, d_active, d_up.view_as(inputs.up), d_down.view_as(inputs.down)


fused_update = _Update.apply


def _weight_sizes(inputs: Inputs) -> list[int]:
    """Return the number of elements of each weight: gain, W_up and W_down."""
    gain_size = inputs.gain.numel() if inputs.gain is not None else 0
    return [gain_size, inputs.up.numel(), inputs.down.numel()]


def _forward_shapes(inputs: Inputs) -> Tensor:
    batch, length, _ = inputs.active.shape
    channels, _ = inputs.down.shape
    return inputs.active.new_empty(batch, length, channels, inputs.initial.shape[-1])


@operator("tape_update_forward", _forward_shapes)
def _forward(inputs: Inputs) -> Tensor:
    """Return D', see _Update. Both passes need regular inputs."""
    out = _forward_shapes(inputs)
    _run(update_kernel, _sizes(inputs), inputs.active, **inputs._asdict(), out=out)
    return out


def _backward_shapes(inputs: Inputs, d_out: Tensor) -> list[Tensor]:
    d_weights = inputs.up.new_empty(sum(_weight_sizes(inputs)))
    return [*empty_copies(inputs.active), d_weights, *empty_copies(inputs.delta, inputs.attended)]


@operator("tape_update_backward", _backward_shapes)
def _backward(inputs: Inputs, d_out: Tensor) -> list[Tensor]:
    """Return the gradients of a, all weights in one vector, D if there is one, and U if attention moves the state."""
    delta = inputs.delta
    attended = inputs.attended
    d_active = torch.empty_like(inputs.active)
    d_delta = None if delta is None else torch.empty_like(delta)
    d_attended = None if attended is None else torch.empty_like(attended, memory_format=torch.contiguous_format)
    # Each program's gradients of all weights are in one row, so that a single kernel sums them.
    weight_sizes = _weight_sizes(inputs)
    sizes = _sizes(inputs)
    parts = inputs.initial.new_empty(num_programs(update_backward_kernel, sizes, inputs.active), sum(weight_sizes))
    d_gain_parts, d_up_parts, d_down_parts = parts.split(weight_sizes, 1)
    _run(
        update_backward_kernel,
        {**sizes, "PARTS": parts.shape[1]},
        inputs.active,
        # Inputs
        **inputs._asdict(),
        d_out=d_out,
        # Outputs
        d_delta=d_delta,
        d_attended=d_attended,
        d_gain=d_gain_parts,
        d_active=d_active,
        d_up=d_up_parts,
        d_down=d_down_parts,
    )
    return drop_nones(d_active, parts.sum(0).to(inputs.up.dtype), d_delta, d_attended)


def _sizes(inputs: Inputs) -> dict[str, int]:
    """Return the sizes among both kernels' arguments. Names ending in _P are padded sizes."""
    batch, length, _ = inputs.active.shape
    channels, inner = inputs.down.shape
    size = inputs.initial.shape[-1]
    group = 1
    stride = size
    if inputs.attended is not None:
        group = inputs.attended.shape[2] // channels
        stride = _head_stride(inputs.attended)
    return {
        "tokens": batch * length,
        "GROUP": group,
        "GROUP_P": triton.next_power_of_2(group),
        "STRIDE": stride,
        "CHANNELS": channels,
        "INNER": inner,
        "SIZE": size,
        "CHANNELS_P": _padded(channels),
        "INNER_P": _padded(inner),
        "SIZE_P": _padded(size),
    }


def _with_regular_heads(attended: Tensor) -> Tensor:
    """Return A e [B, N, H, R] with equal distances between heads, as a half of A [v | e] has them. Copies it otherwise."""
    _, length, heads, _ = attended.shape
    stride = attended.stride(2)
    if attended.stride() == (length * heads * stride, heads * stride, stride, 1):
        return attended
    return attended.contiguous()


def _head_stride(attended: Tensor) -> int:
    """Return the distance between heads of A e from `_with_regular_heads`, in elements."""
    if attended.is_contiguous():
        # The stride of a dimension with a single element may be any number.
        return attended.shape[-1]
    return attended.stride(2)


def _padded(size: int) -> int:
    return max(MIN_SIZE, triton.next_power_of_2(size))


def _run(kernel: Kernel, sizes: Mapping[str, int], active: Tensor, /, **tensors: Tensor | None) -> None:
    """Run a kernel with sizes from `_sizes`."""
    settings = select_settings(kernel, sizes, active)
    products = PRODUCTS[kernel]
    columns = products.weight * sizes["INNER_P"] + products.state * sizes["SIZE_P"]
    # Padding and the zeros between diagonal blocks are multiplied as well.
    flops = 2 * num_tiles(sizes, settings.rows) * settings.rows**2 * columns
    grid = (num_programs(kernel, sizes, active),)
    launch(kernel, grid, flops, settings.warps, settings.stages, {**tensors, **sizes, "ROWS": settings.rows})
