"""RoPE and TAPE training steps: times, tokens and FLOPs per second, and activation memory.

A step is timed with every backend, eager, compiled, and with selective activation checkpointing. The baseline, eager RoPE with
`auto`, runs in the same rounds. On a GPU the steps are CUDA graphs, so that the host's speed does not matter.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatape.accounting.activation_memory import plan_activations
from megatape.accounting.saved_tensors import saved_bytes
from megatape.accounting.workload import Workload
from megatape.attention.attend import get_backend, select_backend
from megatape.config import Config
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.raw_step import RawStep
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.step_tables import LAYER, SELECTIVE, STEP_MODES, StepCase, StepResult, step_tables
from megatape.lab.benchmark.measured_model import MeasuredModel
from megatape.lab.benchmark.models import Shape, compute_precision, shapes
from megatape.lab.benchmark.timing import Timer, captured, ratio
from megatape.lab.benchmark.utilization import step_flops, utilization
from megatape.lab.encodings import BASELINE, with_encoding
from megatape.model.requirements import attention_requirements
from megatape.registry import AUTO, BACKENDS
from megatape.training.reporting.hardware import peak_flops

# Depths measured in place of the 7B model, which does not fit into one GPU with its optimizer state. Its time is extrapolated:
# both depths include embedding, head and loss, and each further block costs half the difference.
DEPTHS = (2, 4)

# Returns a step's configuration, given its shape.
Configure = Callable[[Shape], Config]


class StepTimes(NamedTuple):
    """A measured step, and times in the same rounds as the baseline.

    Attributes:
        step: Measured step.
        seconds: Seconds per round, on a GPU with a CUDA graph.
        baseline: The baseline's seconds per round.
        launched: Median seconds without a CUDA graph.
    """

    step: RawStep
    seconds: list[float]
    baseline: list[float]
    launched: float


def measure(bench: Bench, name: str) -> None:
    """Measure a shape's steps: "155m" with its attention layer alone, "7b" extrapolated from two depths."""
    if name == "155m":
        _measure_layers(bench, shapes(bench.tiny)[name])
    measure_step = _measure_whole
    if name == "7b":
        measure_step = _extrapolate
    _measure_steps(bench, name, measure_step)


def table(results: Results) -> Iterator[str]:
    """Yield the tables for all shapes."""
    yield from step_tables(results)


def _measure_layers(bench: Bench, shape: Shape) -> None:
    timer = bench.timer
    for encoding in (BASELINE, "tape"):
        for backend in _backends(shape, encoding, timer.device):
            action = partial(_measure_layer, timer, shape, encoding, backend)
            bench.measure(StepCase(encoding, backend, LAYER), action)


def _measure_steps(bench: Bench, name: str, measure_step: Callable[[Timer, Shape, Configure], StepResult]) -> None:
    timer = bench.timer
    shape = shapes(bench.tiny)[name]
    precision = compute_precision(timer.device)
    for mode, encoding in product(STEP_MODES, (BASELINE, "tape")):
        # Compiling takes longer than all other tiny steps, so do it only once.
        if mode == "compiled" and bench.tiny and (name, encoding) != ("155m", "tape"):
            continue
        backends = _backends(shape, encoding, timer.device)
        checkpointing = "none"
        if mode == SELECTIVE:
            checkpointing = "selective"
            backends = backends[:1]
        for backend in backends:
            settings: dict[str, Any] = {
                "attention": backend,
                "compile": mode == "compiled",
                "activation_checkpointing": checkpointing,
            }
            configure = partial(Shape.config, encoding=encoding, precision=precision, **settings)
            bench.measure(StepCase(encoding, backend, mode), partial(measure_step, timer, shape, configure))


def _backends(shape: Shape, encoding: str, device: torch.device) -> list[str]:
    """Return the supported backends, starting with `auto`'s choice. The fallback `blocked` is not timed."""
    need, *_ = attention_requirements(shape.config(encoding, compute_precision(device)), device.type)
    chosen = select_backend(need)
    backends = [chosen]
    for name in BACKENDS:
        is_supported = get_backend(name).unsupported_reason(need) is None
        if is_supported and name not in ("blocked", chosen):
            backends.append(name)
    return backends


def _time_step(timer: Timer, shape: Shape, config: Config) -> StepTimes:
    step = RawStep(config, timer.device)
    baseline = RawStep(shape.config(BASELINE, config.training.precision), timer.device)
    seconds = timer.times({"step": step, "baseline": baseline})
    launched = median(seconds["step"])
    if timer.device.type == "cuda":
        seconds = timer.times({"step": step.captured(), "baseline": baseline.captured()})
    return StepTimes(step, seconds["step"], seconds["baseline"], launched)


def _measure_whole(timer: Timer, shape: Shape, configure: Configure) -> StepResult:
    config = configure(shape)
    times = _time_step(timer, shape, config)
    saved = None
    # Hooks on saved tensors would break compiled graphs.
    if not config.training.compile:
        saved = saved_bytes(times.step.model, shape.batch, shape.length)
    on_gpu = timer.device.type == "cuda"
    peak = None
    if on_gpu:
        peak = _peak_activations(times.step)
    return _step_result(
        shape,
        config,
        median(times.seconds),
        ratio(times.seconds, times.baseline).median,
        launched_seconds=times.launched,
        saved_bytes=saved,
        planned_bytes=plan_activations(Workload.from_config(config), on_gpu).total,
        peak_bytes=peak,
    )


def _peak_activations(step: RawStep) -> int:
    """Return a step's peak bytes on a GPU, without weights, gradients and optimizer state."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step.loss().backward()
    return torch.cuda.max_memory_allocated() - before


def _extrapolate(timer: Timer, shape: Shape, configure: Configure) -> StepResult:
    """Measure a step at DEPTHS, and extrapolate the time to all layers."""
    seconds = []
    baseline = []
    for depth in DEPTHS:
        shallow = shape.with_layers(depth)
        times = _time_step(timer, shallow, configure(shallow))
        seconds.append(median(times.seconds))
        baseline.append(median(times.baseline))
    extrapolated = _at_depth(shape.model.num_layers, seconds)
    over_baseline = extrapolated / _at_depth(shape.model.num_layers, baseline)
    depths = {str(depth): measured for depth, measured in zip(DEPTHS, seconds, strict=True)}
    return _step_result(shape, configure(shape), extrapolated, over_baseline, extrapolated_from=depths)


def _at_depth(num_layers: int, seconds: list[float]) -> float:
    """Extrapolate seconds at DEPTHS to another depth."""
    few_layers, many_layers = DEPTHS
    few, many = seconds
    per_layer = (many - few) / (many_layers - few_layers)
    return few + (num_layers - few_layers) * per_layer


def _measure_layer(timer: Timer, shape: Shape, encoding: str, backend: str) -> StepResult:
    """Time an attention layer's forward pass beside RoPE's with `auto`."""
    layer = shape.with_layers(1)
    weights: dict[tuple[str, torch.Size], Tensor] = {}

    def make_action(encoding: str, attention: str) -> Callable[[], object]:
        encoded = replace(layer, model=with_encoding(layer.model, encoding))
        measured = MeasuredModel(encoded, timer.device, weights, attention)
        if timer.device.type == "cuda":
            return captured(measured.attention_layer)
        return measured.attention_layer

    action = make_action(encoding, backend)
    baseline = make_action(BASELINE, AUTO)
    seconds, over_baseline = timer.compare(action, baseline)
    return StepResult(seconds=seconds, ratio=over_baseline)


def _step_result(shape: Shape, config: Config, seconds: float, over_baseline: float, **figures: Any) -> StepResult:
    """Return a step's figures: rates derived from the seconds, and more StepResult fields."""
    flops = step_flops(config.model, shape.batch, shape.length)
    peak = peak_flops(config.training.precision)
    mfu = None
    if peak:
        mfu = utilization(flops, seconds, peak)
    return StepResult(
        seconds=seconds,
        tokens_per_second=shape.batch * shape.length / seconds,
        flops_per_second=flops / seconds,
        config=config.model_dump(mode="json"),
        mfu=mfu,
        ratio=over_baseline,
        **figures,
    )
