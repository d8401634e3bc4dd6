"""Training steps of RoPE and TAPE with every backend.

Eager and compiled, and with selective activation checkpointing; in the same rounds as RoPE with `auto`, eager.

Times, tokens and FLOPs a second, and activations against the planner's.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

from megatape.attention.operation import get_backend, select_backend
from megatape.benchmark.bare import BareStep
from megatape.benchmark.child import Bench
from megatape.benchmark.clock import Clock, clock_of, median, ratio
from megatape.benchmark.journal import Result
from megatape.benchmark.shapes import Shape, shapes
from megatape.config import ActivationCheckpointing, Config
from megatape.model.accounting import forward_flops, saved_bytes
from megatape.model.needs import attention_needs
from megatape.plan.memory import plan_activations
from megatape.registry import AUTO, BACKENDS
from megatape.study.choice import with_encoding
from megatape.study.efficiency import BASELINE, Subject, compute_dtype
from megatape.training.hardware import peak_flops

# Of the 7B model, blocks that one GPU holds twice with their optimizer's state. A whole step is that of the fewer ones, and for
# every further block half of the difference; embedding, head and loss are in both.
DEPTHS = (2, 4)

SELECTIVE = "selective"  # a mode beside eager and compiled

Measure = Callable[[Clock, Shape, Config], Result]


def at_155m(bench: Bench) -> None:
    """The 155M model, and attention with the position update alone."""
    clock, shape = clock_of(bench), shapes(bench.tiny)["155m"]
    for encoding in (BASELINE, "tape"):
        for backend in _backends(shape, encoding, clock.device):
            bench.measure(f"{encoding}/{backend}/attention layer", partial(_layer, clock, shape, encoding, backend))
    _steps(bench, "155m", _whole)


def at_1b(bench: Bench) -> None:
    """The 1B model."""
    _steps(bench, "1b", _whole)


def at_7b(bench: Bench) -> None:
    """The 7B model, extrapolated from two depths."""
    _steps(bench, "7b", _extrapolated)


def _steps(bench: Bench, name: str, measure: Measure) -> None:
    clock, shape = clock_of(bench), shapes(bench.tiny)[name]
    for mode, encoding in product(("eager", "compiled", SELECTIVE), (BASELINE, "tape")):
        if mode == "compiled" and bench.tiny and (name, encoding) != ("155m", "tape"):
            continue  # compiling once takes longer than all the rest
        backends = _backends(shape, encoding, clock.device)
        for backend in backends[:1] if mode == SELECTIVE else backends:
            checkpointing: ActivationCheckpointing = "selective" if mode == SELECTIVE else "none"
            config = shape.config(encoding, _precision(clock.device), backend, mode == "compiled", checkpointing)
            bench.measure(f"{encoding}/{backend}/{mode}", partial(measure, clock, shape, config))


def _backends(shape: Shape, encoding: str, device: torch.device) -> list[str]:
    """Those that can, first that of `auto`; without `blocked`, which is for all that others refuse."""
    need, _ = attention_needs(shape.config(encoding, _precision(device)), device.type)
    able = [name for name in BACKENDS if name != "blocked" and get_backend(name).unsupported_reason(need) is None]
    chosen = select_backend(need)
    return [chosen, *(name for name in able if name != chosen)]


def _compared(clock: Clock, shape: Shape, config: Config) -> tuple[BareStep, list[float], list[float]]:
    """A step, and the seconds of it and of the baseline in the same rounds."""
    dtype, training = compute_dtype(clock.device), config.training
    own = BareStep(
        shape,
        config.model.encoding,
        clock.device,
        dtype,
        training.attention,
        training.compile,
        checkpointing=training.activation_checkpointing,
    )
    seconds = clock.times({"own": own, "baseline": BareStep(shape, BASELINE, clock.device, dtype)})
    return own, seconds["own"], seconds["baseline"]


def _whole(clock: Clock, shape: Shape, config: Config) -> Result:
    own, seconds, baseline = _compared(clock, shape, config)
    result = _rates(shape, config, median(seconds)) | {"ratio": ratio(seconds, baseline)}
    if not config.training.compile:  # hooks on what is saved would break compiled graphs
        result["saved bytes"] = saved_bytes(own.model, shape.batch, shape.length)
    on_gpu = clock.device.type == "cuda"
    result["planned bytes"] = sum(plan_activations(config, on_gpu).values())
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()  # weights, gradients, optimizer
        own.loss().backward()
        result["peak bytes"] = torch.cuda.max_memory_allocated() - before
    return result


def _extrapolated(clock: Clock, shape: Shape, config: Config) -> Result:
    measured = []
    for depth in DEPTHS:
        model = shape.model.model_copy(update={"num_layers": depth})
        _, seconds, baseline = _compared(clock, Shape(model, shape.batch, shape.length), config)
        measured.append((median(seconds), median(baseline)))
    (own_few, few), (own_many, many) = measured
    blocks = (shape.model.num_layers - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])
    whole, baseline_whole = own_few + blocks * (own_many - own_few), few + blocks * (many - few)
    result = _rates(shape, config, whole) | {"ratio": whole / baseline_whole}
    return result | {"extrapolated from": {str(depth): pair[0] for depth, pair in zip(DEPTHS, measured, strict=True)}}


def _layer(clock: Clock, shape: Shape, encoding: str, backend: str) -> Result:
    model = shape.model.model_copy(update={"num_layers": 1})
    weights: dict[tuple[str, torch.Size], Tensor] = {}
    own, baseline = (
        Subject(with_encoding(model, name), shape.length, shape.batch, clock.device, weights, attention)
        for name, attention in ((encoding, backend), (BASELINE, AUTO))
    )
    seconds = clock.times({"own": own.attention_layer, "baseline": baseline.attention_layer})
    return {"seconds": median(seconds["own"]), "ratio": ratio(seconds["own"], seconds["baseline"])}


def _rates(shape: Shape, config: Config, seconds: float) -> Result:
    """MFU counts all N x N scores, and the backward pass as two forward passes."""
    flops = 3 * forward_flops(config.model, shape.length) * shape.batch
    result: Result = {"seconds": seconds, "tokens/s": shape.batch * shape.length / seconds, "FLOP/s": flops / seconds}
    result["config"] = config.model_dump(mode="json")  # for the planner
    peak = peak_flops(config.training.precision)
    return result | ({"MFU": flops / seconds / peak} if peak else {})


def _precision(device: torch.device) -> str:
    return str(compute_dtype(device)).removeprefix("torch.")
