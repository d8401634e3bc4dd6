"""Rotation and position update in one layer, compared with copying the bytes that they must at least read and write.

Inputs, outputs and gradients move once, and inputs a second time for the backward pass. B batch, N tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from megatape.attention.rotating_backend import rotated_heads
from megatape.attention.rotation import PositionState
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.figures.timing import Timer
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import measurements, titled
from megatape.lab.benchmark.models.shapes import UP_STD, ModelShape, compute_dtype, position_state, shapes
from megatape.utils.text.units import format_bytes, format_milliseconds

# Draws a tensor [B, N, *sizes].
Draw = Callable[..., Tensor]


class LayerOperation(NamedTuple):
    """An operation on every token, its inputs and its trained weights."""

    run: Callable[..., tuple[Tensor, ...]]
    inputs: list[Tensor]
    weights: list[Tensor]


class UpdateCase(NamedTuple):
    """An operation at a shape."""

    shape: str
    operation: str


class TimesBesideCopy(Measurement):
    """Seconds, minimum bytes to read and write, and the ratio to copying as many bytes."""

    seconds: float
    bytes: int
    ratio_to_a_copy: float


class UpdateResult(Measurement):
    """Times for the forward pass, and for both passes."""

    forward: TimesBesideCopy
    step: TimesBesideCopy


def measure(bench: Bench) -> None:
    """Measure RoPE's and TAPE's rotations, and TAPE's update."""
    timer = bench.timer
    operations: dict[str, Callable[[ModelShape, Draw], LayerOperation]] = {
        "rotation of RoPE": partial(_rotation, averages_state=False),
        "rotation": _rotation,
        "update": _update,
    }
    if timer.device.type == "cuda" and find_spec("triton"):
        operations["update by kernel"] = partial(_update, by_kernel=True)
    for name in ("155m", "1b", "7b"):
        for label, make in operations.items():
            bench.measure(UpdateCase(name, label), partial(_measure_operation, timer, make, shapes(bench.tiny)[name]))


def _rotation(shape: ModelShape, draw: Draw, averages_state: bool = True) -> LayerOperation:
    """Return the rotation for queries and keys, with a moving state (TAPE) or a constant one (RoPE)."""
    model = shape.model
    query = draw(model.num_heads, model.head_dim)
    key = draw(model.num_kv_heads, model.head_dim)
    delta = draw(model.num_kv_heads, model.head_dim)
    inputs = [query, key, _initial_state(shape, query.device)]
    if averages_state:
        inputs.append(delta)

    def rotate_heads(query: Tensor, key: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        outputs = rotated_heads(query, key, PositionState(*state), averages_state, by_kernel=True)
        return tuple(output for output in outputs if output is not None)

    return LayerOperation(rotate_heads, inputs, weights=[])


def _update(shape: ModelShape, draw: Draw, by_kernel: bool = False) -> LayerOperation:
    """Return the position update, with weights as after some training."""
    model = shape.model
    delta = draw(model.num_kv_heads, model.head_dim)
    attended = draw(model.num_heads, model.head_dim)
    mlp_output = draw(model.hidden_size)
    update = encoding_of(model).update(SINGLE)
    assert update is not None
    update.use_kernels(by_kernel)
    update.to(mlp_output.device, mlp_output.dtype)
    for weight in update.parameters():
        torch.nn.init.normal_(weight, std=UP_STD)

    def updated(initial: Tensor, delta: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (update(PositionState(initial, delta), *inputs).delta,)

    inputs = [_initial_state(shape, mlp_output.device), delta, attended, mlp_output]
    return LayerOperation(updated, inputs, list(update.parameters()))


def _initial_state(shape: ModelShape, device: torch.device) -> Tensor:
    position_ids = torch.arange(shape.length, device=device).expand(shape.batch, -1)
    return position_state(shape.model, position_ids)


def _measure_operation(timer: Timer, make: Callable[[ModelShape, Draw], LayerOperation], shape: ModelShape) -> UpdateResult:
    device = timer.device
    dtype = compute_dtype(device)

    def draw(*sizes: int) -> Tensor:
        tensor = torch.randn(shape.batch, shape.length, *sizes, device=device, dtype=dtype)
        return tensor.requires_grad_()

    operation = make(shape, draw)
    inputs = operation.inputs
    with torch.no_grad():
        outputs = operation.run(*inputs)
    d_outputs = [torch.randn_like(output) for output in outputs]
    trained = [tensor for tensor in (*inputs, *operation.weights) if tensor.requires_grad]

    @torch.no_grad()
    def inference() -> None:
        operation.run(*inputs)

    def step() -> None:
        torch.autograd.grad(operation.run(*inputs), trained, d_outputs)

    forward_bytes = _bytes(inputs) + _bytes(outputs)
    backward_bytes = _bytes(inputs) + _bytes(d_outputs) + _bytes(trained)
    return UpdateResult(
        forward=_beside_copy(timer, inference, forward_bytes),
        step=_beside_copy(timer, step, forward_bytes + backward_bytes),
    )


def _beside_copy(timer: Timer, action: Callable[[], None], num_bytes: int) -> TimesBesideCopy:
    """Time an action beside a copy that reads and writes `num_bytes` in total."""
    source = torch.ones(num_bytes // 2, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    seconds, ratio = timer.compare(action, lambda: target.copy_(source))
    return TimesBesideCopy(seconds=seconds, bytes=num_bytes, ratio_to_a_copy=ratio)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per operation."""
    rows = []
    for case, result in measurements(results, "update", UpdateCase, UpdateResult):
        row = [*case]
        for part in (result.forward, result.step):
            row += [
                format_milliseconds(part.seconds),
                format_bytes(part.bytes),
                ratio_cell(part.ratio_to_a_copy),
            ]
        rows.append(row)
    header = ["shape", "", "forward, ms", "bytes", "over a copy", "and backward, ms", "bytes", "over a copy"]
    yield from titled("Rotation and position update, beside a copy of the fewest bytes", header, rows)
