"""Attention, rotation and the position update of one layer: times and errors.

`attention`: every backend that supports a case, beside rotary attention by PyTorch's choice of kernel. Rotary attention
includes the rotation of queries and keys, as attention that moves the position tensor does.

`update`: rotation and the position update, beside a copy of as many bytes as they must read and write at least. Every input and
output is read or written once; the backward pass reads the inputs again, and each gradient moves once.

Shapes as in model/transformer.py.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatape.attention.attend import attend, backends_by_priority, get_backend
from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.attention.bias import DistanceBias
from megatape.attention.fused_rotation import rotated_heads
from megatape.attention.rotation import PositionState, rotate
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.lab.benchmark.models import UP_STD, Shape, compute_dtype, position_state, shapes
from megatape.lab.benchmark.results import Result, Results, over_rope, rows_of, titled
from megatape.lab.benchmark.timing import Timer
from megatape.lab.benchmark.worker import Bench
from megatape.registry import BACKENDS
from megatape.utils.units import format_bytes, format_milliseconds

ROTARY = ("plain", "moving")
SHAPES = (("155m", False), ("1b", False), ("1b", True), ("7b", False), ("8b", False))  # whether documents are masked
CASES = [(name, attends, masked) for name, masked in SHAPES for attends in ROTARY]
CASES.append(("155m", "distance bias", False))
# The kernels of SDPA, each by itself: the fastest one for rotary attention is the baseline of all ratios (tables.py).
KERNELS = {
    "cuda": {
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
    "cpu": {"math": SDPBackend.MATH},
}
DOCUMENTS = 5  # in a sequence, where there are several


def attention(bench: Bench) -> None:
    """Measure every backend in every case."""
    timer = bench.timer
    for name, attends, masked in CASES:
        shape = shapes(bench.tiny)[name]
        case = f"{name}{', documents' * masked}/{attends}"
        variants = [
            each for each in _variants(timer.device, attends, shape, masked) if not bench.has_result(f"{case}/{each.label}")
        ]
        if variants:
            problem = Problem(shape, attends, masked, timer.device)
            baseline = Problem(shape, "plain", False, timer.device)  # of documents, too: every kernel knows that much
        for variant in variants:
            bench.measure(f"{case}/{variant.label}", partial(_compared, timer, problem, variant, baseline))


class Variant(NamedTuple):
    """A backend, in a context that may force its kernel."""

    label: str
    backend: str
    context: Callable[[], AbstractContextManager[object]] = nullcontext


def _variants(device: torch.device, attends: str, shape: Shape, masked: bool) -> Iterator[Variant]:
    bias: BiasKind = "distance" if attends == "distance bias" else "none"
    need = AttentionRequirements(device.type, attends == "moving", bias, shape.model.head_dim, compute_dtype(device), masked)
    for name in BACKENDS:
        if get_backend(name).unsupported_reason(need) is None:
            yield Variant(name, name)
            if name == BASELINE.backend and not masked:
                for label, kernel in KERNELS[device.type].items():
                    yield Variant(f"{name}, {label}", name, partial(sdpa_kernel, kernel))


BASELINE = Variant("sdpa", "sdpa")


class Problem:
    """Inputs of attention, gradients of its outputs, and both results in float64."""

    def __init__(self, shape: Shape, attends: str, masked: bool, device: torch.device) -> None:
        config = shape.model.model_copy(update={"encoding": "rope"})
        self.attends = attends
        batch = shape.batch
        length = shape.length
        size = config.head_dim
        dtype = compute_dtype(device)
        generator = torch.Generator(device).manual_seed(0)

        def draw(*sizes: int) -> Tensor:
            return torch.randn(*sizes, generator=generator, device=device, dtype=dtype)

        heads = config.num_heads
        channels = config.num_kv_heads
        self.inputs = [draw(batch, length, count, size) for count in (heads, channels, channels)]
        if attends == "moving":
            self.inputs.append(0.2 * draw(batch, length, channels, size))
        if attends == "distance bias":
            self.inputs.append(draw(heads, length).float())
        for tensor in self.inputs:
            tensor.requires_grad_()
        positions = torch.arange(length, device=device)
        self.state = position_state(config, positions.expand(batch, -1))
        of_document = -(-length // DOCUMENTS)
        self.starts = (positions // of_document * of_document).expand(batch, -1).contiguous() if masked else None
        self.d_outputs = [draw(batch, length, heads, size) for _ in range(1 + (attends == "moving"))]

    def forward(self, backend: str) -> list[Tensor]:
        """The outputs, A v and perhaps A e, [B, N, H, R] each."""
        q, k, v, *rest = self.inputs
        moving = self.attends == "moving"
        biased = self.attends == "distance bias"
        outputs = attend(
            q,
            k,
            v,
            state=None if biased else PositionState(self.state, rest[0] if moving else None),
            bias=DistanceBias(*rest) if biased else None,
            document_starts=self.starts,
            move=moving,
            backends=backends_by_priority(backend),
        )
        return [output for output in outputs if output is not None]

    @torch.no_grad()
    def inference(self, variant: Variant) -> None:
        """The forward pass alone."""
        with variant.context():
            self.forward(variant.backend)

    def step(self, variant: Variant) -> list[Tensor]:
        """Outputs and gradients of the inputs."""
        with variant.context():
            outputs = self.forward(variant.backend)
            return [*outputs, *torch.autograd.grad(outputs, self.inputs, self.d_outputs)]

    @cached_property
    def exact(self) -> list[Tensor]:
        """The same by the formula in float64, one key/value head after the other."""
        inputs = [tensor.detach().double().requires_grad_() for tensor in self.inputs]
        q, k, v, *rest = inputs
        groups = q.shape[2] // k.shape[2]
        length = q.shape[1]
        index = torch.arange(length, device=q.device)
        hidden = index > index[:, None] if self.starts is None else (index > index[:, None]) | (index < self.starts[..., None])
        outputs: list[list[Tensor]] = []
        for channel in range(k.shape[2]):
            heads = slice(channel * groups, (channel + 1) * groups)
            one = slice(channel, channel + 1)
            queries = q[:, :, heads]
            keys = k[:, :, one]
            values = [v[:, :, one]]
            if self.attends != "distance bias":
                e = self.state.double()
                if self.attends == "moving":
                    values.append(e := e + rest[0][:, :, one])
                queries = rotate(queries, e)
                keys = rotate(keys, e)
            scores = torch.einsum("bqhr,bkr->bhqk", queries, keys[:, :, 0]) / math.sqrt(q.shape[3])
            if self.attends == "distance bias":
                scores = scores + rest[0][heads][:, (index[:, None] - index).clamp(min=0)]
            weights = scores.masked_fill(hidden.view(-1, 1, length, length), -math.inf).softmax(-1)
            found = [torch.einsum("bhqk,bkr->bqhr", weights, value[:, :, 0]) for value in values]
            torch.autograd.backward(found, [d_output[:, :, heads].double() for d_output in self.d_outputs])
            outputs.append([output.detach() for output in found])
        gradients = [tensor.grad for tensor in inputs if tensor.grad is not None]
        return [*(torch.cat(parts, 2) for parts in zip(*outputs, strict=True)), *gradients]


def _compared(timer: Timer, problem: Problem, variant: Variant, baseline: Problem) -> Result:
    errors = [relative_error(*pair) for pair in zip(problem.step(variant), problem.exact, strict=True)]
    num_outputs = len(problem.d_outputs)
    result: Result = {"error of outputs": max(errors[:num_outputs]), "error of gradients": max(errors[num_outputs:])}
    for part, method in {"forward": Problem.inference, "step": Problem.step}.items():
        seconds, ratio = timer.compare(partial(method, problem, variant), partial(method, baseline, BASELINE))
        result[part] = {"seconds": seconds, "ratio": ratio}
    return result


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Largest difference over the largest value."""
    return float((found.detach() - exact).abs().max() / exact.abs().max())


def table(results: Results) -> Iterator[str]:
    """A table with a row for each case and backend."""
    cases: dict[str, dict[tuple[str, str], Result]] = {}
    for (case, attends, variant), r in rows_of(results, "attention"):
        cases.setdefault(case, {})[{"plain": "rope", "moving": "tape"}.get(attends, attends), variant] = r
    rows = []
    for case, variants in cases.items():
        forward, step = (over_rope({key: r[part]["ratio"] for key, r in variants.items()}) for part in ("forward", "step"))
        for key, r in variants.items():
            if forward:
                times = [format_milliseconds(r["forward"]["seconds"]), f"{forward[key]:.2f}"]
                times += [format_milliseconds(r["step"]["seconds"]), f"{step[key]:.2f}"]
                rows.append([case, *key, *times, f"{r['error of outputs']:.1e}", f"{r['error of gradients']:.1e}"])
    header = ["shape", "attention", "by", "forward, ms", "over the fastest RoPE", "and backward, ms", "over the fastest RoPE"]
    yield from titled("Attention with rotation, one layer", [*header, "error of outputs", "of gradients"], rows)


Elementwise = tuple[Callable[..., tuple[Tensor, ...]], list[Tensor], list[Tensor]]  # function, its inputs, weights inside it


def update(bench: Bench) -> None:
    """Measure both, and RoPE's rotation, at every shape."""
    timer = bench.timer
    problems: dict[str, Callable[..., Elementwise]] = {"rotation of RoPE": partial(_rotation, moves=False)}
    problems |= {"rotation": _rotation, "update": _update}
    if timer.device.type == "cuda" and find_spec("triton"):
        problems["update by kernel"] = partial(_update, by_kernel=True)
    for name in ("155m", "1b", "7b"):
        for label, make in problems.items():
            bench.measure(f"{name}/{label}", partial(_beside_copy, timer, make, shapes(bench.tiny)[name]))


def _rotation(shape: Shape, draw: Callable[..., Tensor], moves: bool = True) -> Elementwise:
    model = shape.model
    q, k, delta = (draw(count, model.head_dim) for count in (model.num_heads, model.num_kv_heads, model.num_kv_heads))

    def rotate_heads(q: Tensor, k: Tensor, *e: Tensor) -> tuple[Tensor, ...]:
        return tuple(part for part in rotated_heads(q, k, PositionState(*e), moves) if part is not None)

    return rotate_heads, [q, k, _state(shape, q.device), *([delta] if moves else [])], []


def _update(shape: Shape, draw: Callable[..., Tensor], by_kernel: bool = False) -> Elementwise:
    model = shape.model
    delta, attended = (draw(count, model.head_dim) for count in (model.num_kv_heads, model.num_heads))
    m = draw(model.hidden_size)
    update = encoding_of(model).update(SINGLE)
    assert update is not None
    update.by_kernel = by_kernel
    update.to(m.device, m.dtype)
    for weight in update.parameters():
        torch.nn.init.normal_(weight, std=UP_STD)

    def updated(initial: Tensor, delta: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (update(PositionState(initial, delta), *inputs).delta,)

    return updated, [_state(shape, m.device), delta, attended, m], list(update.parameters())


def _state(shape: Shape, device: torch.device) -> Tensor:
    return position_state(shape.model, torch.arange(shape.length, device=device).expand(shape.batch, -1))


def _beside_copy(timer: Timer, make: Callable[[Shape, Callable[..., Tensor]], Elementwise], shape: Shape) -> Result:
    def draw(*sizes: int) -> Tensor:
        tensor = torch.randn(shape.batch, shape.length, *sizes, device=timer.device, dtype=compute_dtype(timer.device))
        return tensor.requires_grad_()

    action, inputs, weights = make(shape, draw)
    with torch.no_grad():
        outputs = action(*inputs)
    d_outputs = [torch.randn_like(output) for output in outputs]
    trained = [tensor for tensor in (*inputs, *weights) if tensor.requires_grad]

    @torch.no_grad()
    def inference() -> None:
        action(*inputs)

    def step() -> None:
        torch.autograd.grad(action(*inputs), trained, d_outputs)

    forward = _bytes(inputs) + _bytes(outputs)
    backward = _bytes(inputs) + _bytes(d_outputs) + _bytes(trained)
    actions = {"forward": (inference, forward), "step": (step, forward + backward)}
    return {part: _over_copy(timer, *action) for part, action in actions.items()}


def _over_copy(timer: Timer, action: Callable[[], None], count: int) -> Result:
    """count: bytes that it must move."""
    source = torch.ones(count // 2, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    seconds, ratio = timer.compare(action, lambda: target.copy_(source))
    return {"seconds": seconds, "bytes": count, "ratio to a copy": ratio}


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def update_table(results: Results) -> Iterator[str]:
    """A table with a row for each shape and operation."""
    rows = []
    for (shape, name), r in rows_of(results, "update"):
        row = [shape, name]
        for part in (r["forward"], r["step"]):
            row += [format_milliseconds(part["seconds"]), format_bytes(part["bytes"]), f"{part['ratio to a copy']:.2f}"]
        rows.append(row)
    header = ["shape", "", "forward, ms", "bytes", "over a copy", "and backward, ms", "bytes", "over a copy"]
    yield from titled("Rotation and position update, beside a copy of the fewest bytes", header, rows)
