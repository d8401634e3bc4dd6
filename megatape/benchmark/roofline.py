"""Training steps of RoPE and TAPE as the planner estimates them without a GPU (megatape/plan/work.py), beside the targets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from megatape.attention.backend import WIDEST
from megatape.benchmark.encodings import BASELINE
from megatape.benchmark.models import Shape, shapes
from megatape.benchmark.results import Result, met, read_results
from megatape.benchmark.steps import LAYER_TARGET, MFU_TARGET, SAVED_TARGET, STEP_TARGETS
from megatape.config import Config
from megatape.errors import UserError
from megatape.model.accounting import forward_flops
from megatape.plan.gpus import Gpu, load_gpu
from megatape.plan.memory import plan_memory
from megatape.plan.operations import ASSUMPTIONS, Attention, DeviceTime, Operation, Work, device_times, middle
from megatape.plan.speed import optimizer_work
from megatape.plan.work import attention_layer_work, step_work
from megatape.tables import markdown
from megatape.units import format_bytes

PRECISION = "bfloat16"
HERE = ("sdpa", "triton")  # what has code here; of the others there are estimates only
CUDNN, FA2, ONE_PASS = "cuDNN, rotated at once", "FA2, rotated at once", "one pass at cuDNN's rates"
# Products of attention that computes the scores once in each pass, over those of our kernels: (forward, backward).
PLAIN, MOVING = (1.0, 5 / 7), (1.0, 7 / 10)
# The same of cuDNN where [v | e] is too wide for one call. It moves more than ours, in numbers for each of x: a kernel rotates
# queries, which ours rotate as they load them; [v | e] is written and split in each pass, or gradients of two calls are added.
TWO_CALLS, QUERIES_MOVE, ONE_CALL_MOVES, TWO_CALLS_MOVE = (4 / 3, 1.0), 2, 8, 3


@dataclass(frozen=True)
class Estimate:
    """Estimate of a training step or of a layer.

    Attributes:
        encoding: Name of the encoding.
        attention: Name of the backend, as in the keys of results.jsonl, or one of those without code.
        mode: eager or compiled.
        times: (bad, good).
        work: Its operations.
        saved: Bytes kept for the backward pass, None where they are not counted.
    """

    encoding: str
    attention: str
    mode: str
    times: tuple[DeviceTime, DeviceTime]
    work: Work
    saved: int | None = None

    @property
    def seconds(self) -> float:
        """In the middle of the range."""
        return sum(middle(self.times))

    @property
    def by(self) -> str:
        """Backend and mode, as a cell."""
        return f"{self.attention}, {self.mode}"


def report(gpu_name: str, measured: Path | None, tiny: bool = False) -> Iterator[str]:
    """Yields the paragraphs. measured: results.jsonl of megatape benchmark gpu. tiny: small shapes.

    Raises UserError or FileNotFoundError if there is no such GPU or file, or no Triton, whose kernels are counted.
    """
    if find_spec("triton") is None:
        raise UserError("the roofline counts our kernels, which need the package triton: pip install triton")
    gpu, results = load_gpu(gpu_name), read_results(measured) if measured else {}
    yield f"Estimates for one {gpu.name} in {PRECISION}, of which nothing is measured. Assumed:"
    yield "\n".join(f"* {line}" for line in ASSUMPTIONS)
    targets: list[list[str]] = []
    for name in STEP_TARGETS:
        shape = shapes(tiny)[name]
        steps = list(_steps(shape, gpu))
        yield f"**Training steps at {name}, {shape.batch} x {shape.length}**"
        yield _steps_table(name, shape, gpu, steps, results)
        targets += _step_targets(name, shape, gpu, steps)
    layers = list(_layers(shapes(tiny)["155m"], gpu))
    targets += _ratios("attention layer forward at 155m, TAPE over RoPE", layers, LAYER_TARGET)
    yield "**Targets**"
    yield markdown(["", f"to RoPE by {CUDNN}", "by", "target", "met", "to the fastest RoPE here"], targets)


def _steps(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
    layers = shape.model.num_layers
    for encoding, mode in product((BASELINE, "tape"), ("eager", "compiled")):
        configs = {name: shape.config(encoding, PRECISION, attention=name, compile=mode == "compiled") for name in HERE}
        steps = {attention: step_work(config) for attention, config in configs.items()}
        works = {attention: Counter(step.work) for attention, step in steps.items()}
        works |= _without_code(configs["triton"], works["triton"], layers, passes=2 * (layers - 1))
        optimizer = optimizer_work(plan_memory(configs["triton"], 1, on_gpu=True))
        for attention, work in works.items():
            work.update(optimizer)
            saved = steps[attention].saved if mode == "eager" and attention in steps else None
            yield Estimate(encoding, attention, mode, device_times(work, gpu), work, saved)


def _layers(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
    for encoding in (BASELINE, "tape"):
        configs = {attention: shape.config(encoding, PRECISION, attention=attention) for attention in HERE}
        works = {attention: attention_layer_work(config) for attention, config in configs.items()}
        works |= _without_code(configs["triton"], works["triton"], layers=1, passes=1)
        for attention, work in works.items():
            yield Estimate(encoding, attention, "eager", device_times(work, gpu), work)


def _without_code(config: Config, work: Work, layers: int, passes: int) -> dict[str, Work]:
    """The work with other attention than ours. work: with ours; layers, passes: in it, those that move the state."""
    x_bytes = 2 * config.training.micro_batch_size * config.data.sequence_length * config.model.hidden_size
    rotated = Counter(work)  # by no sum of counters, which drops negative counts, as of what torch.compile fuses
    rotated[Operation("other", 0, QUERIES_MOVE * x_bytes)] += layers
    if config.model.encoding == BASELINE:
        return {CUDNN: _replaced(rotated, "sdpa", PLAIN), FA2: _replaced(rotated, "fa2", PLAIN)}
    one_call = 2 * config.model.head_dim <= WIDEST
    cudnn = _replaced(rotated, "sdpa", MOVING if one_call else TWO_CALLS)
    cudnn[Operation("other", 0, (ONE_CALL_MOVES if one_call else TWO_CALLS_MOVE) * x_bytes)] += passes
    return {CUDNN: cudnn, ONE_PASS: _replaced(work, "sdpa", MOVING)}


def _replaced(work: Work, backend: str, products: tuple[float, float]) -> Work:
    """The work with attention at the rates of another backend."""
    result: Work = Counter()
    for each, times in work.items():
        if isinstance(each.kind, Attention):
            flops = each.flops * products[each.kind.direction == "backward"]
            each = each._replace(kind=each.kind._replace(backend=backend), flops=flops)
        result[each] += times
    return result


def _steps_table(name: str, shape: Shape, gpu: Gpu, steps: list[Estimate], results: dict[str, Result]) -> str:
    baseline = _fastest(steps, BASELINE, CUDNN).seconds
    numbers = shape.batch * shape.length * shape.model.hidden_size * shape.model.num_layers
    rows = []
    for each in steps:
        bad, good = each.times
        compute_bound, memory_bound = middle(each.times)
        moved = sum(operation.bytes * times for operation, times in each.work.items() if not operation.flops)
        words = [each.encoding, each.attention, each.mode]
        rows.append(
            [
                *words,
                f"{each.seconds * 1e3:.1f} ({sum(good) * 1e3:.1f} to {sum(bad) * 1e3:.1f})",
                f"{each.seconds / baseline:.3f}",
                f"{_utilization(shape, gpu, each):.0%}",
                f"{compute_bound * 1e3:.1f}",
                f"{memory_bound * 1e3:.1f}",
                f"{moved / numbers:.0f}",
                "" if each.saved is None else format_bytes(each.saved),
            ]
        )
        if results:
            found = results.get("/".join((f"step {name}", *words)), {})
            rows[-1].append(f"{found['seconds'] * 1e3:.1f}" if "seconds" in found else "")
    header = ["encoding", "attention", "", "ms", f"to RoPE by {CUDNN}", "MFU", "arithmetic, ms", "memory, ms"]
    return markdown([*header, "bytes for each number of x", "saved", *(["measured, ms"] if results else [])], rows)


def _utilization(shape: Shape, gpu: Gpu, estimate: Estimate) -> float:
    model = shape.config(estimate.encoding, PRECISION).model
    return 3 * forward_flops(model, shape.length) * shape.batch / estimate.seconds / gpu.bfloat16_flops


def _step_targets(name: str, shape: Shape, gpu: Gpu, steps: list[Estimate]) -> Iterator[list[str]]:
    yield from _ratios(f"training step at {name}, TAPE over RoPE", steps, STEP_TARGETS[name])
    base, own = (
        min((each.saved, each.by) for each in steps if each.encoding == encoding and each.saved is not None)
        for encoding in (BASELINE, "tape")
    )
    over = own[0] / base[0]
    label, target = f"saved activations at {name}, TAPE over RoPE", f"at most {SAVED_TARGET}"
    yield [label, f"{over:.3f}", own[1], target, met(over <= SAVED_TARGET), ""]
    if name == MFU_TARGET[0]:
        fastest, least = _fastest(steps, "tape", *HERE), MFU_TARGET[1]
        share = _utilization(shape, gpu, fastest)
        yield [f"MFU of TAPE at {name}", f"{share:.0%}", fastest.by, f"at least {least:.0%}", met(share >= least), ""]


def _ratios(name: str, estimates: list[Estimate], target: float) -> Iterator[list[str]]:
    """TAPE over RoPE, by the fastest that has code and by attention without: rows of the table of targets."""
    base, ours = _fastest(estimates, BASELINE, CUDNN), _fastest(estimates, BASELINE, *HERE)
    for attentions in (HERE, (CUDNN,), (ONE_PASS,)):
        own = _fastest(estimates, "tape", *attentions)
        over = own.seconds / base.seconds
        yield [name, f"{over:.3f}", own.by, f"at most {target}", met(over <= target), f"{own.seconds / ours.seconds:.3f}"]


def _fastest(estimates: list[Estimate], encoding: str, *attentions: str) -> Estimate:
    found = [each for each in estimates if each.encoding == encoding and each.attention in attentions]
    return min(found, key=lambda each: each.seconds)
