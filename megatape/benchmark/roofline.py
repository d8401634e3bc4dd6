"""Training steps of RoPE and TAPE as the planner estimates them without a GPU (megatape/plan/work.py), beside the targets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from megatape.attention.operation import get_backend
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.benchmark.encodings import BASELINE
from megatape.benchmark.journal import Result, read_results
from megatape.benchmark.shapes import Shape, shapes
from megatape.benchmark.steps import LAYER_TARGET, MFU_TARGET, SAVED_TARGET, STEP_TARGETS
from megatape.benchmark.tables import met
from megatape.config import Config
from megatape.model.accounting import forward_flops
from megatape.model.encodings import encoding_of
from megatape.model.needs import attention_needs
from megatape.plan.gpus import Gpu, load_gpu
from megatape.plan.memory import plan_memory
from megatape.plan.operations import DeviceTime, Operation, Work, device_times, middle, scaled, touched_bytes
from megatape.plan.speed import ASSUMPTIONS, optimizer_work
from megatape.plan.trace import run_pass
from megatape.plan.work import attention_layer_work, count, on_shapes, step_work
from megatape.tables import markdown
from megatape.units import format_bytes

PRECISION = "bfloat16"
ROTATED_AT_ONCE = "sdpa, rotated at once"


class Way(NamedTuple):
    """How an encoding runs, named as in the keys of results.jsonl."""

    encoding: str
    attention: str
    mode: str = "eager"

    @property
    def ours(self) -> bool:
        """Whether there is code for it: RoPE with a kernel that rotates queries and keys at once is what others have."""
        return self.attention != ROTATED_AT_ONCE


@dataclass(frozen=True)
class Estimate:
    """Of a training step or of a layer. times: (bad, good); saved: bytes, None where they are not counted."""

    times: tuple[DeviceTime, DeviceTime]
    work: Work
    saved: int | None = None

    @property
    def seconds(self) -> float:
        """In the middle of the range."""
        return sum(middle(self.times))


Estimates = dict[Way, Estimate]


def report(gpu_name: str, measured: Path | None, tiny: bool = False) -> Iterator[str]:
    """Yields the paragraphs. measured: results.jsonl of megatape benchmark gpu. tiny: small shapes.

    Raises UserError or FileNotFoundError if there is no such GPU or file.
    """
    gpu, results = load_gpu(gpu_name), read_results(measured) if measured else {}
    yield f"Estimates for one {gpu.name} in {PRECISION}, of which nothing is measured. Assumed:"
    yield "\n".join(f"* {line}" for line in ASSUMPTIONS)
    targets: list[list[str]] = []
    for name in STEP_TARGETS:
        shape = shapes(tiny)[name]
        steps = dict(_steps(shape, gpu))
        yield f"**Training steps at {name}, {shape.batch} x {shape.length}**"
        yield _steps_table(name, shape, gpu, steps, results)
        targets += _step_targets(name, shape, gpu, steps)
    layers = dict(_layers(shapes(tiny)["155m"], gpu))
    targets.append(_target("attention layer forward at 155m, TAPE over RoPE", layers, LAYER_TARGET))
    yield "**Targets**"
    yield markdown(["", "estimated", "by", "target", "met", "over RoPE rotated at once"], targets)


def _steps(shape: Shape, gpu: Gpu) -> Iterator[tuple[Way, Estimate]]:
    for encoding in (BASELINE, "tape"):
        config = shape.config(encoding, PRECISION)
        optimizer = optimizer_work(plan_memory(config, 1, run_pass(config), on_gpu=True))
        for attention in _attentions(config):
            for mode in ("eager", "compiled"):
                own = shape.config(encoding, PRECISION, attention, mode == "compiled")
                step = step_work(own)
                work = Counter(step.work)
                work.update(optimizer)
                saved = step.saved if mode == "eager" else None
                yield Way(encoding, attention, mode), Estimate(device_times(work, gpu), work, saved)
                if (encoding, attention) == (BASELINE, "sdpa"):
                    work = Counter(work)
                    work.update(scaled(_rotation_at_once(own, backward=True), config.model.num_layers))
                    yield Way(encoding, ROTATED_AT_ONCE, mode), Estimate(device_times(work, gpu), work)


def _layers(shape: Shape, gpu: Gpu) -> Iterator[tuple[Way, Estimate]]:
    for encoding in (BASELINE, "tape"):
        for attention in _attentions(shape.config(encoding, PRECISION)):
            config = shape.config(encoding, PRECISION, attention)
            work = attention_layer_work(config)
            yield Way(encoding, attention), Estimate(device_times(work, gpu), work)
            if (encoding, attention) == (BASELINE, "sdpa"):
                work = Counter(work)
                work.update(_rotation_at_once(config, backward=False))
                yield Way(encoding, ROTATED_AT_ONCE), Estimate(device_times(work, gpu), work)


def _attentions(config: Config) -> list[str]:
    """Those whose packages are here."""
    need, _ = attention_needs(config, "cuda")
    return [name for name in ("sdpa", "triton") if get_backend(name).unsupported_reason(need) is None]


def _rotation_at_once(config: Config, backward: bool) -> Work:
    """What changes in a layer if one kernel rotates queries and keys, and another one their gradients."""
    model, tokens = config.model, (config.training.micro_batch_size, config.data.sequence_length)
    encoding = encoding_of(model)
    with on_shapes(config):
        q, k = (torch.empty(*tokens, heads, model.head_dim) for heads in (model.num_heads, model.num_kv_heads))
        state = encoding.state(torch.zeros(tokens, dtype=torch.long))
        assert state is not None
        q.requires_grad_(backward), k.requires_grad_(backward)
        with count() as work:
            rotated = rotate_qk(q, k, PositionState(state))
            if backward:
                torch.autograd.grad(rotated, (q, k), [torch.empty_like(part) for part in rotated])
    changed = scaled(work, -1)
    changed[Operation("other", 0, touched_bytes([q, k, state, *rotated]))] += 1 + backward
    return changed


def _steps_table(name: str, shape: Shape, gpu: Gpu, steps: Estimates, results: dict[str, Result]) -> str:
    fastest = min(each.seconds for way, each in steps.items() if way.encoding == BASELINE and way.ours)
    numbers = shape.batch * shape.length * shape.model.hidden_size * shape.model.num_layers
    rows = []
    for way, each in steps.items():
        bad, good = each.times
        compute_bound, memory_bound = middle(each.times)
        moved = sum(operation.bytes * times for operation, times in each.work.items() if not operation.flops)
        rows.append(
            [
                *way,
                f"{each.seconds * 1e3:.1f} ({sum(good) * 1e3:.1f} to {sum(bad) * 1e3:.1f})",
                f"{each.seconds / fastest:.3f}",
                f"{_utilization(shape, way.encoding, gpu, each):.0%}",
                f"{compute_bound * 1e3:.1f}",
                f"{memory_bound * 1e3:.1f}",
                f"{moved / numbers:.0f}",
                "" if each.saved is None else format_bytes(each.saved),
            ]
        )
        if results:
            found = results.get("/".join((f"step {name}", *way)), {})
            rows[-1].append(f"{found['seconds'] * 1e3:.1f}" if "seconds" in found else "")
    header = ["encoding", "attention", "", "ms", "over the fastest RoPE", "MFU", "arithmetic, ms", "memory, ms"]
    return markdown([*header, "bytes for each number of x", "saved", *(["measured, ms"] if results else [])], rows)


def _utilization(shape: Shape, encoding: str, gpu: Gpu, estimate: Estimate) -> float:
    model = shape.config(encoding, PRECISION).model
    return 3 * forward_flops(model, shape.length) * shape.batch / estimate.seconds / gpu.bfloat16_flops


def _step_targets(name: str, shape: Shape, gpu: Gpu, steps: Estimates) -> Iterator[list[str]]:
    yield _target(f"training step at {name}, TAPE over RoPE", steps, STEP_TARGETS[name])
    saved = {way: each.saved for way, each in steps.items() if each.saved is not None}
    least = min(count for way, count in saved.items() if way.encoding == BASELINE)
    way, own = min(((way, count) for way, count in saved.items() if way.encoding == "tape"), key=lambda pair: pair[1])
    saved_ratio, label = own / least, f"saved activations at {name}, TAPE over RoPE"
    yield [label, f"{saved_ratio:.3f}", _by(way), f"at most {SAVED_TARGET}", met(saved_ratio <= SAVED_TARGET), ""]
    if name == MFU_TARGET[0]:
        way = _fastest(steps, "tape")
        share, target = _utilization(shape, "tape", gpu, steps[way]), MFU_TARGET[1]
        yield [f"MFU of TAPE at {name}", f"{share:.0%}", _by(way), f"at least {target:.0%}", met(share >= target), ""]


def _target(name: str, estimates: Estimates, target: float) -> list[str]:
    """The fastest TAPE over the fastest RoPE, and over one that is rotated at once."""
    way = _fastest(estimates, "tape")
    own, base = estimates[way].seconds, estimates[_fastest(estimates, BASELINE)].seconds
    floor = min(each.seconds for other, each in estimates.items() if not other.ours)
    return [name, f"{own / base:.3f}", _by(way), f"at most {target}", met(own / base <= target), f"{own / floor:.3f}"]


def _fastest(estimates: Estimates, encoding: str) -> Way:
    return min((way for way in estimates if way.encoding == encoding and way.ours), key=lambda way: estimates[way].seconds)


def _by(way: Way) -> str:
    return f"{way.attention}, {way.mode}"
