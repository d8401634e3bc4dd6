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

from megatape.accounting.memory.activation_memory import plan_activations
from megatape.accounting.memory.saved_tensors import saved_bytes
from megatape.accounting.workload import Workload
from megatape.attention.attend import get_backend, select_backend
from megatape.config import Config
from megatape.errors import UserError
from megatape.lab.benchmark.figures.timing import Timer, captured, ratio, spread
from megatape.lab.benchmark.figures.utilization import step_flops, utilization
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts.raw_step import RawStep
from megatape.lab.benchmark.gpu.parts.step_tables import LAYER, SELECTIVE, STEP_MODES, StepCase, StepResult, step_tables
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.models.measured_model import MeasuredModel
from megatape.lab.benchmark.models.shapes import ModelShape, compute_precision, shapes
from megatape.lab.encodings import BASELINE, with_encoding
from megatape.model.requirements import attention_requirements
from megatape.registry import AUTO, BACKENDS
from megatape.training.reporting.hardware import peak_flops

# Depths measured in place of the 7B model, which does not fit into one GPU with its optimizer state. Its time is extrapolated:
# both depths include embedding, head and loss, and each further block costs half the difference.
DEPTHS = (2, 4)
# Maximum number of measurements at DEPTHS. Times of a busy machine may be too noisy at first.
MAX_ATTEMPTS = 5

# Number of layers -> seconds per round.
SecondsByDepth = dict[int, list[float]]

# Returns a step's configuration, given its shape.
Configure = Callable[[ModelShape], Config]


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
    measure_step = _extrapolate if name == "7b" else _measure_whole
    _measure_steps(bench, name, measure_step)


def table(results: Results) -> Iterator[str]:
    """Yield the tables for all shapes."""
    yield from step_tables(results)


def _measure_layers(bench: Bench, shape: ModelShape) -> None:
    timer = bench.timer
    for encoding in (BASELINE, "tape"):
        for backend in _backends(shape, encoding, timer.device):
            action = partial(_measure_layer, timer, shape, encoding, backend)
            bench.measure(StepCase(encoding, backend, LAYER), action)


def _measure_steps(bench: Bench, name: str, measure_step: Callable[[Timer, ModelShape, Configure], StepResult]) -> None:
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
            configure = partial(ModelShape.config, encoding=encoding, precision=precision, **settings)
            bench.measure(StepCase(encoding, backend, mode), partial(measure_step, timer, shape, configure))


def _backends(shape: ModelShape, encoding: str, device: torch.device) -> list[str]:
    """Return the supported backends, starting with `auto`'s choice. The fallback `blocked` is not timed."""
    need, *_ = attention_requirements(shape.config(encoding, compute_precision(device)), device.type)
    chosen = select_backend(need)
    backends = [chosen]
    for name in BACKENDS:
        is_supported = get_backend(name).unsupported_reason(need) is None
        if is_supported and name not in ("blocked", chosen):
            backends.append(name)
    return backends


def _time_step(timer: Timer, shape: ModelShape, config: Config) -> StepTimes:
    step = RawStep(config, timer.device)
    baseline = RawStep(shape.config(BASELINE, config.training.precision), timer.device)
    seconds = timer.times({"step": step, "baseline": baseline})
    launched = median(seconds["step"])
    if timer.device.type == "cuda":
        seconds = timer.times({"step": step.captured(), "baseline": baseline.captured()})
    return StepTimes(step, seconds["step"], seconds["baseline"], launched)


def _measure_whole(timer: Timer, shape: ModelShape, configure: Configure) -> StepResult:
    config = configure(shape)
    times = _time_step(timer, shape, config)
    saved = None
    # Hooks on saved tensors would break compiled graphs.
    if not config.training.compile:
        saved = saved_bytes(times.step.model, shape.batch, shape.length)
    on_gpu = timer.device.type == "cuda"
    peak = _peak_activations(times.step) if on_gpu else None
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


def _extrapolate(timer: Timer, shape: ModelShape, configure: Configure) -> StepResult:
    """Measure a step at DEPTHS, and extrapolate the time to all layers."""
    step, baseline = _time_depths(timer, shape, configure)
    num_layers = shape.model.num_layers
    extrapolated = seconds_at_depth(num_layers, step)
    over_baseline = extrapolated / seconds_at_depth(num_layers, baseline)
    measured = {str(depth): median(seconds) for depth, seconds in step.items()}
    return _step_result(shape, configure(shape), extrapolated, over_baseline, extrapolated_from=measured)


def _time_depths(timer: Timer, shape: ModelShape, configure: Configure) -> tuple[SecondsByDepth, SecondsByDepth]:
    """Time a step and the baseline at DEPTHS. If the times are too noisy to extrapolate, try again."""
    for _ in range(MAX_ATTEMPTS):
        step: SecondsByDepth = {}
        baseline: SecondsByDepth = {}
        for depth in DEPTHS:
            shallow = shape.with_layers(depth)
            times = _time_step(timer, shallow, configure(shallow))
            step[depth] = times.seconds
            baseline[depth] = times.baseline
        if _is_clear(step) and _is_clear(baseline):
            break
    return step, baseline


def seconds_at_depth(num_layers: int, seconds: SecondsByDepth) -> float:
    """Extrapolate the time of a step to another depth.

    Args:
        num_layers: The other depth.
        seconds: Seconds per round at DEPTHS.

    Raises:
        UserError: The times are too noisy. A difference smaller than the noise would decide most of the result, even its sign.
    """
    few_layers, many_layers = DEPTHS
    few = median(seconds[few_layers])
    many = median(seconds[many_layers])
    if not _is_clear(seconds):
        raise UserError(
            f"{many_layers} layers took {1e3 * many:.3g} ms and {few_layers} layers {1e3 * few:.3g} ms, too close to "
            f"extrapolate to {num_layers} layers (the quartiles overlap): measure again while nothing else runs on the device"
        )
    per_layer = (many - few) / (many_layers - few_layers)
    return few + (num_layers - few_layers) * per_layer


def _is_clear(seconds: SecondsByDepth) -> bool:
    """Whether more layers take longer, beyond the quartiles of the rounds."""
    few, many = (spread(seconds[depth]) for depth in DEPTHS)
    return few.high < many.low


def _measure_layer(timer: Timer, shape: ModelShape, encoding: str, backend: str) -> StepResult:
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


def _step_result(shape: ModelShape, config: Config, seconds: float, over_baseline: float, **figures: Any) -> StepResult:
    """Return a step's figures: rates derived from the seconds, and more StepResult fields."""
    flops = step_flops(config.model, shape.batch, shape.length)
    peak = peak_flops(config.training.precision)
    mfu = utilization(flops, seconds, peak) if peak else None
    return StepResult(
        seconds=seconds,
        tokens_per_second=shape.batch * shape.length / seconds,
        flops_per_second=flops / seconds,
        config=config.model_dump(mode="json"),
        mfu=mfu,
        ratio=over_baseline,
        **figures,
    )
