"""Training steps of RoPE and TAPE as the planner estimates them without a GPU, beside the targets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from megatape.accounting.activations import activations
from megatape.accounting.flops import forward_flops
from megatape.accounting.gpus import Gpu, load_gpu
from megatape.accounting.memory import plan_memory
from megatape.errors import UserError
from megatape.lab.benchmark.models import Shape, shapes
from megatape.lab.benchmark.results import Result, read_results, yes_no
from megatape.lab.benchmark.targets import LAYER_TARGET, MFU_TARGET, SAVED_TARGET, STEP_TARGETS
from megatape.lab.encodings import BASELINE
from megatape.tools.planner.device import optimizer_work
from megatape.tools.planner.efficiency import ASSUMPTIONS, DeviceTime, device_times, middle
from megatape.tools.planner.operations import Attention, Work
from megatape.tools.planner.work import attention_layer_work, step_work
from megatape.utils.tables import markdown
from megatape.utils.units import format_bytes

PRECISION = "bfloat16"
IMPLEMENTED = ("sdpa", "triton")  # what has code here; of the others there are estimates only
ONE_PASS = "one pass at cuDNN's rates"
ONCE = 7 / 10  # products of TAPE's backward pass if it computed the scores once, over those of our kernels


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
    gpu = load_gpu(gpu_name)
    results = read_results(measured) if measured else {}
    yield f"Estimates for one {gpu.name} in {PRECISION}. Assumed:"
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
    yield markdown(["", "estimate", "by", "target", "met"], targets)


def _steps(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
    for encoding, mode in product((BASELINE, "tape"), ("eager", "compiled")):
        configs = {name: shape.config(encoding, PRECISION, attention=name, compile=mode == "compiled") for name in IMPLEMENTED}
        works = {attention: Counter(step_work(config)) for attention, config in configs.items()}
        works |= _without_code(encoding, works)
        optimizer = optimizer_work(plan_memory(configs["triton"], 1, on_gpu=True))
        for attention, work in works.items():
            work.update(optimizer)
            saved = activations(configs[attention], on_gpu=True).total if mode == "eager" and attention in configs else None
            yield Estimate(encoding, attention, mode, device_times(work, gpu), work, saved)


def _layers(shape: Shape, gpu: Gpu) -> Iterator[Estimate]:
    for encoding in (BASELINE, "tape"):
        configs = {attention: shape.config(encoding, PRECISION, attention=attention) for attention in IMPLEMENTED}
        works = {attention: attention_layer_work(config) for attention, config in configs.items()}
        works |= _without_code(encoding, works)
        for attention, work in works.items():
            yield Estimate(encoding, attention, "eager", device_times(work, gpu), work)


def _without_code(encoding: str, works: dict[str, Work]) -> dict[str, Work]:
    """The work with attention of which there are estimates only."""
    if encoding == BASELINE:
        return {}
    result: Work = Counter()  # by no sum of counters, which drops negative counts, as of what torch.compile fuses
    for each, times in works["triton"].items():
        if isinstance(each.kind, Attention):
            flops = each.flops * (ONCE if each.kind.direction == "backward" else 1)
            each = each._replace(kind=each.kind._replace(backend="sdpa"), flops=flops)
        result[each] += times
    return {ONE_PASS: result}


def _steps_table(name: str, shape: Shape, gpu: Gpu, steps: list[Estimate], results: dict[str, Result]) -> str:
    baseline = _fastest(steps, BASELINE, *IMPLEMENTED).seconds
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
    header = ["encoding", "attention", "", "ms", "to the fastest RoPE", "MFU", "arithmetic, ms", "memory, ms"]
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
    label = f"saved activations at {name}, TAPE over RoPE"
    target = f"at most {SAVED_TARGET}"
    yield [label, f"{over:.3f}", own[1], target, yes_no(over <= SAVED_TARGET)]
    if name == MFU_TARGET[0]:
        fastest = _fastest(steps, "tape", *IMPLEMENTED)
        least = MFU_TARGET[1]
        share = _utilization(shape, gpu, fastest)
        yield [f"MFU of TAPE at {name}", f"{share:.0%}", fastest.by, f"at least {least:.0%}", yes_no(share >= least)]


def _ratios(name: str, estimates: list[Estimate], target: float) -> Iterator[list[str]]:
    """TAPE, by the fastest that has code and by one pass, over the fastest RoPE that has code: rows of the table of targets."""
    base = _fastest(estimates, BASELINE, *IMPLEMENTED)
    for attentions in (IMPLEMENTED, (ONE_PASS,)):
        own = _fastest(estimates, "tape", *attentions)
        over = own.seconds / base.seconds
        yield [name, f"{over:.3f}", own.by, f"at most {target}", yes_no(over <= target)]


def _fastest(estimates: list[Estimate], encoding: str, *attentions: str) -> Estimate:
    found = [each for each in estimates if each.encoding == encoding and each.attention in attentions]
    return min(found, key=lambda each: each.seconds)
