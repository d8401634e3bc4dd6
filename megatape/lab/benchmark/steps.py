"""Training steps of RoPE and TAPE: times, tokens and FLOPs a second, activations, FP8, and a profile of their kernels.

`at_155m`, `at_1b`, `at_7b`: with every backend, eager and compiled, and with selective activation checkpointing; in the same
rounds as RoPE with `auto`, eager. A GPU replays them as CUDA graphs, so that the host's speed does not count. Activations are
compared with the planner's.

`fp8`: with FP8 products beside those without, in the same rounds. Both are compiled: FP8 gains only where scaling is fused with
what comes before it.

`profile`: where the time of a step goes: its kernels, how long the GPU waits for the host, and when the host waits for it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from typing import Any, get_args

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity
from torch.profiler import profile as record

from megatape.accounting.counts import forward_flops, saved_bytes
from megatape.accounting.memory import plan_activations
from megatape.attention.attend import get_backend, select_backend
from megatape.config import Config, Fp8Recipe
from megatape.lab.benchmark.efficiency import Subject
from megatape.lab.benchmark.models import RawStep, Shape, compute_precision, shapes
from megatape.lab.benchmark.results import Result, Results, over_rope, rows_of, titled, yes_no
from megatape.lab.benchmark.timing import Timer, captured, ratio
from megatape.lab.benchmark.worker import Bench
from megatape.lab.encodings import BASELINE, with_encoding
from megatape.model.smoke_test import attention_needs
from megatape.registry import AUTO, BACKENDS
from megatape.training.hardware import peak_flops
from megatape.utils.units import format_bytes, format_milliseconds

# Of the 7B model, blocks that one GPU holds twice with their optimizer's state. A whole step is that of the fewer ones, and for
# every further block half of the difference; embedding, head and loss are in both.
DEPTHS = (2, 4)

# TAPE over the fastest RoPE in a whole training step, at most, by shape.
STEP_TARGETS = {"155m": 1.10, "1b": 1.08, "7b": 1.07}
LAYER_TARGET = 1.23  # attention layer, forward: what the paper's fused one takes
SAVED_TARGET = 1.08  # bytes that a training step keeps for its backward pass
MFU_TARGET = ("1b", 0.45)

SELECTIVE = "selective"
LAYER = "attention layer"
STEP_MODES = ("eager", "compiled", SELECTIVE)

Way = Callable[[Shape], Config]  # to run a step


def at_155m(bench: Bench) -> None:
    """The 155M model, and attention with the position update alone."""
    timer = bench.timer
    shape = shapes(bench.tiny)["155m"]
    for encoding in (BASELINE, "tape"):
        for backend in _backends(shape, encoding, timer.device):
            bench.measure(f"{encoding}/{backend}/{LAYER}", partial(_layer, timer, shape, encoding, backend))
    _steps(bench, "155m", _whole)


def at_1b(bench: Bench) -> None:
    """The 1B model."""
    _steps(bench, "1b", _whole)


def at_7b(bench: Bench) -> None:
    """The 7B model, extrapolated from two depths."""
    _steps(bench, "7b", _extrapolated)


def _steps(bench: Bench, name: str, measure: Callable[[Timer, Shape, Way], Result]) -> None:
    timer = bench.timer
    shape = shapes(bench.tiny)[name]
    for mode, encoding in product(STEP_MODES, (BASELINE, "tape")):
        if mode == "compiled" and bench.tiny and (name, encoding) != ("155m", "tape"):
            continue  # compiling once takes longer than all the rest
        backends = _backends(shape, encoding, timer.device)
        for backend in backends[:1] if mode == SELECTIVE else backends:
            settings: dict[str, Any] = {
                "attention": backend,
                "compile": mode == "compiled",
                "activation_checkpointing": "selective" if mode == SELECTIVE else "none",
            }
            way = partial(Shape.config, encoding=encoding, precision=compute_precision(timer.device), **settings)
            bench.measure(f"{encoding}/{backend}/{mode}", partial(measure, timer, shape, way))


def _backends(shape: Shape, encoding: str, device: torch.device) -> list[str]:
    """Those that can, first that of `auto`; without `blocked`, which is for all that others refuse."""
    need, *_ = attention_needs(shape.config(encoding, compute_precision(device)), device.type)
    able = [name for name in BACKENDS if name != "blocked" and get_backend(name).unsupported_reason(need) is None]
    chosen = select_backend(need)
    return [chosen, *(name for name in able if name != chosen)]


def _compared(timer: Timer, shape: Shape, config: Config) -> tuple[RawStep, list[float], list[float], float]:
    """A step; seconds of it and of the baseline in the same rounds, on a GPU as CUDA graphs; and its seconds without one."""
    own = RawStep(config, timer.device)
    baseline = RawStep(shape.config(BASELINE, config.training.precision), timer.device)
    seconds = timer.times({"own": own, "baseline": baseline})
    launched = median(seconds["own"])
    if timer.device.type == "cuda":
        seconds = timer.times({"own": own.captured(), "baseline": baseline.captured()})
    return own, seconds["own"], seconds["baseline"], launched


def _whole(timer: Timer, shape: Shape, way: Way) -> Result:
    config = way(shape)
    own, seconds, baseline, launched = _compared(timer, shape, config)
    result = _rates(shape, config, median(seconds)) | {"ratio": ratio(seconds, baseline).median}
    result["launched seconds"] = launched
    if not config.training.compile:  # hooks on what is saved would break compiled graphs
        result["saved bytes"] = saved_bytes(own.model, shape.batch, shape.length)
    on_gpu = timer.device.type == "cuda"
    result["planned bytes"] = sum(plan_activations(config, on_gpu).values())
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()  # weights, gradients, optimizer
        own.loss().backward()
        result["peak bytes"] = torch.cuda.max_memory_allocated() - before
    return result


def _extrapolated(timer: Timer, shape: Shape, way: Way) -> Result:
    measured = []
    for depth in DEPTHS:
        shallow = shape.with_layers(depth)
        _, seconds, baseline, _ = _compared(timer, shallow, way(shallow))
        measured.append((median(seconds), median(baseline)))
    (own_few, few), (own_many, many) = measured
    blocks = (shape.model.num_layers - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])
    whole = own_few + blocks * (own_many - own_few)
    baseline_whole = few + blocks * (many - few)
    result = _rates(shape, way(shape), whole) | {"ratio": whole / baseline_whole}
    return result | {"extrapolated from": {str(depth): pair[0] for depth, pair in zip(DEPTHS, measured, strict=True)}}


def _layer(timer: Timer, shape: Shape, encoding: str, backend: str) -> Result:
    layer = shape.with_layers(1)
    weights: dict[tuple[str, torch.Size], Tensor] = {}
    own, baseline = (
        Subject(replace(layer, model=with_encoding(layer.model, name)), timer.device, weights, attention)
        for name, attention in ((encoding, backend), (BASELINE, AUTO))
    )
    actions = [each.attention_layer for each in (own, baseline)]
    seconds, over = timer.compare(*(map(captured, actions) if timer.device.type == "cuda" else actions))
    return {"seconds": seconds, "ratio": over}


def _rates(shape: Shape, config: Config, seconds: float) -> Result:
    """MFU counts all N x N scores, and the backward pass as two forward passes."""
    flops = 3 * forward_flops(config.model, shape.length) * shape.batch
    result: Result = {"seconds": seconds, "tokens/s": shape.batch * shape.length / seconds, "FLOP/s": flops / seconds}
    result["config"] = config.model_dump(mode="json")  # for the planner
    peak = peak_flops(config.training.precision)
    return result | ({"MFU": flops / seconds / peak} if peak else {})


def table(results: Results) -> Iterator[str]:
    """Targets, then a table with a row for each way to run a step."""
    yield from _targets(results)
    yield from _step_table(results)


def _targets(results: Results) -> Iterator[str]:
    cases = [(f"training step at {shape}", _ratios(results, shape), target) for shape, target in STEP_TARGETS.items()]
    for shape in ("155m", "1b"):
        cases.append((f"saved activations at {shape}", _ratios(results, shape, ("eager",), "saved bytes"), SAVED_TARGET))
    cases.append(("attention layer forward at 155m", _ratios(results, "155m", (LAYER,)), LAYER_TARGET))
    rows = []
    for name, ratios, target in cases:
        if tape := [ratio for (encoding, *_), ratio in ratios.items() if encoding == "tape"]:
            rows.append([f"{name}, TAPE over RoPE", f"{min(tape):.3f}", f"at most {target}", yes_no(min(tape) <= target)])
    shape, share = MFU_TARGET
    reached = [r["MFU"] for words, r in rows_of(results, f"step {shape}") if words[0] == "tape" and "MFU" in r]
    if reached:
        rows.append([f"MFU of TAPE at {shape}", f"{max(reached):.0%}", f"at least {share:.0%}", yes_no(max(reached) >= share)])
    yield from titled("Targets", ["", "measured", "target", "met"], rows)


def _ratios(
    results: Results, shape: str, modes: Sequence[str] = STEP_MODES, field: str = "ratio"
) -> dict[tuple[str, ...], float]:
    """(encoding, backend, mode) -> a figure over that of the fastest RoPE, or of the RoPE with the least of it."""
    steps = rows_of(results, f"step {shape}")
    return over_rope({words: r[field] for words, r in steps if words[2] in modes and field in r})


def _step_table(results: Results) -> Iterator[str]:
    rows = []
    for shape in STEP_TARGETS:
        ratios = _ratios(results, shape)
        for key, r in rows_of(results, f"step {shape}"):
            if key in ratios:
                sizes = [format_bytes(r[name]) if name in r else "" for name in ("saved bytes", "peak bytes", "planned bytes")]
                mfu = f"{r['MFU']:.1%}" if "MFU" in r else ""
                label = f"{shape}, from {' and '.join(r['extrapolated from'])} layers" if "extrapolated from" in r else shape
                numbers = [format_milliseconds(r["seconds"]), f"{ratios[key]:.3f}", f"{r['tokens/s']:,.0f}", mfu]
                numbers.append(format_milliseconds(r["launched seconds"]) if "launched seconds" in r else "")
                rows.append([label, *key, *numbers, *sizes])
    header = ["shape", "encoding", "attention", "", "ms", "over the fastest RoPE", "tokens/s", "MFU", "ms without a CUDA graph"]
    yield from titled("Training steps", [*header, "saved", "peak of activations", "planned"], rows)


def fp8(bench: Bench) -> None:
    """Every recipe at 1B, and the cheapest one at 155M, whose matrices are smaller than FP8 is made for."""
    timer = bench.timer
    cases = [*(("1b", recipe) for recipe in get_args(Fp8Recipe) if recipe != "none"), ("155m", "tensorwise")]
    for (name, recipe), encoding in product(cases, (BASELINE, "tape")):
        shape = shapes(bench.tiny)[name]
        bench.measure(f"{name}/{encoding}/{recipe}", partial(_in_fp8, timer, shape, encoding, recipe, not bench.tiny))


def _in_fp8(timer: Timer, shape: Shape, encoding: str, recipe: str, compiled: bool) -> Result:
    config, plain = (shape.config(encoding, "bfloat16", compile=compiled, fp8=each) for each in (recipe, "none"))
    seconds, ratio = timer.compare(RawStep(config, timer.device), RawStep(plain, timer.device))
    return {
        "seconds": seconds,
        "tokens/s": shape.batch * shape.length / seconds,
        "ratio": ratio,
        "config": config.model_dump(mode="json"),  # for the planner
    }


def fp8_table(results: Results) -> Iterator[str]:
    """A table with a row for each recipe."""
    rows = [
        [*words, format_milliseconds(r["seconds"]), f"{r['ratio']:.3f}", f"{r['tokens/s']:,.0f}"]
        for words, r in rows_of(results, "fp8")
    ]
    yield from titled("Training steps in FP8", ["shape", "encoding", "recipe", "ms", "over bfloat16", "tokens/s"], rows)


WARM_UP = 3
PROFILED = 3
# kernels in the results and in the table, those that take longest
KEPT = 25
SHOWN = 12
NAME_LENGTH = 90
# Calls of CUDA after which the host waits for the device.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def profile(bench: Bench) -> None:
    """Profile steps of RoPE and TAPE with the backend of `auto`, eager and compiled."""
    shape = shapes(bench.tiny)["155m"]
    for compiled in (False,) if bench.tiny else (False, True):
        for encoding in ("tape", BASELINE):
            key = f"155m/{encoding}/{'compiled' if compiled else 'eager'}"
            bench.measure(key, partial(_profiled, bench.timer, shape, encoding, compiled))


def _profiled(timer: Timer, shape: Shape, encoding: str, compiled: bool) -> Result:
    device = timer.device
    step = RawStep(shape.config(encoding, compute_precision(device), compile=compiled), device)
    for _ in range(WARM_UP):
        step()

    seconds = timer.seconds(step, PROFILED)
    on_gpu = device.type == "cuda"
    with record(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu) as recorder:
        timer.seconds(step, PROFILED)
    events = recorder.key_averages()
    # On a CPU operators take the place of kernels. Ranges that code has named are on the GPU's timeline, too.
    kernels = [event for event in events if not on_gpu or _is_kernel(event)]
    kernels.sort(key=partial(_own_seconds, on_gpu), reverse=True)
    busy = sum(_own_seconds(on_gpu, event) for event in kernels)
    return {
        "seconds": seconds,
        "busy seconds": busy,
        "kernels": sum(event.count for event in kernels) / PROFILED,
        "waits": sum(event.count for event in events if event.key.startswith(WAITS)) / PROFILED,
        "top": [
            {"name": event.key[:NAME_LENGTH], "calls": event.count / PROFILED, "seconds": _own_seconds(on_gpu, event)}
            for event in kernels[:KEPT]
        ],
    }


def _is_kernel(event: Any) -> bool:
    return event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation


def _own_seconds(on_gpu: bool, event: Any) -> float:
    """Seconds of a step, without what ran inside."""
    return float(event.self_device_time_total if on_gpu else event.self_cpu_time_total) / PROFILED / 1e6


def profile_table(results: Results) -> Iterator[str]:
    """A table with a row for each run, then the kernels of each."""
    runs = {", ".join(words): r for words, r in rows_of(results, "profile")}
    header = ["", "ms a step", "GPU busy", "kernels", "waits of the host"]
    rows = []
    for name, r in runs.items():
        busy = r["busy seconds"] / r["seconds"]
        rows.append([name, format_milliseconds(r["seconds"]), f"{busy:.0%}", f"{r['kernels']:.0f}", f"{r['waits']:.0f}"])
    yield from titled("Profile of a step", header, rows)
    for name, r in runs.items():
        top = r["top"][:SHOWN]
        rows = [[f"`{each['name']}`", f"{each['calls']:.0f}", format_milliseconds(each["seconds"])] for each in top]
        yield from titled(f"Kernels of a step, {name}", ["", "calls", "ms"], rows)
