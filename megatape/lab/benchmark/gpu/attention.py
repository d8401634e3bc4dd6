"""Attention of one layer: times and errors of every backend that supports a case.

Each is timed beside rotary attention with PyTorch's choice of the kernel. Rotary attention includes the rotation of queries and
keys, as attention that moves the position tensor does.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.gpu.attention_problem import BASELINE, Kind, Problem, Variant, relative_error
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Measurement, Results, Times
from megatape.lab.benchmark.gpu.tables import over_rope, rows_of, titled
from megatape.lab.benchmark.models import Shape, compute_dtype, shapes
from megatape.lab.benchmark.timing import Timer
from megatape.registry import BACKENDS
from megatape.utils.units import format_milliseconds

# Shape, kind of attention, and whether a sequence has several documents.
CASES: list[tuple[str, Kind, bool]] = [
    ("155m", "plain", False),
    ("155m", "moving", False),
    ("1b", "plain", False),
    ("1b", "moving", False),
    ("1b", "plain", True),
    ("1b", "moving", True),
    ("7b", "plain", False),
    ("7b", "moving", False),
    ("8b", "plain", False),
    ("8b", "moving", False),
    ("155m", "distance bias", False),
]
# Kernels of SDPA. The fastest one for rotary attention is the baseline of all ratios in the table.
KERNELS = {
    "cuda": {
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
    "cpu": {"math": SDPBackend.MATH},
}
# Name of a kind of attention in the table.
ENCODING_OF = {"plain": "rope", "moving": "tape"}


class AttentionResult(Measurement):
    """Result of a backend in a case, beside rotary attention with PyTorch's choice of the kernel.

    Attributes:
        error_of_outputs: Largest relative error of the outputs.
        error_of_gradients: Largest relative error of the gradients.
        forward: Times of the forward pass.
        step: Times of the forward and the backward pass.
    """

    error_of_outputs: float
    error_of_gradients: float
    forward: Times
    step: Times


def measure(bench: Bench) -> None:
    """Measure every backend in every case."""
    timer = bench.timer
    for name, kind, masked in CASES:
        shape = shapes(bench.tiny)[name]
        case = name
        if masked:
            case += ", documents"
        variants = {}
        for variant in _variants(timer.device, kind, shape, masked):
            words = (case, kind, variant.label)
            if not bench.has_result(words):
                variants[words] = variant
        if not variants:
            continue
        problem = Problem(shape, kind, masked, timer.device)
        # Without documents, which not every kernel supports.
        baseline = Problem(shape, "plain", False, timer.device)
        for words, variant in variants.items():
            bench.measure(words, partial(_measure_variant, timer, problem, variant, baseline))


def _variants(device: torch.device, kind: Kind, shape: Shape, masked: bool) -> Iterator[Variant]:
    """Yield the backends that support a case, and each kernel of SDPA."""
    bias: BiasKind = "none"
    if kind == "distance bias":
        bias = "distance"
    need = AttentionRequirements(device.type, kind == "moving", bias, shape.model.head_dim, compute_dtype(device), masked)
    for name in BACKENDS:
        if get_backend(name).unsupported_reason(need) is not None:
            continue
        yield Variant(name, name)
        if name == BASELINE.backend and not masked:
            for label, kernel in KERNELS[device.type].items():
                yield Variant(f"{name}, {label}", name, partial(sdpa_kernel, kernel))


def _measure_variant(timer: Timer, problem: Problem, variant: Variant, baseline: Problem) -> AttentionResult:
    """Return the errors of a variant, and its times beside the baseline's."""
    errors = []
    for found, exact in zip(problem.step(variant), problem.exact, strict=True):
        errors.append(relative_error(found, exact))
    num_outputs = len(problem.d_outputs)
    times = {}
    parts: dict[str, Callable[[Problem, Variant], object]] = {"forward": Problem.inference, "step": Problem.step}
    for part, method in parts.items():
        seconds, ratio = timer.compare(partial(method, problem, variant), partial(method, baseline, BASELINE))
        times[part] = Times(seconds=seconds, ratio=ratio)
    return AttentionResult(
        error_of_outputs=max(errors[:num_outputs]),
        error_of_gradients=max(errors[num_outputs:]),
        forward=times["forward"],
        step=times["step"],
    )


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row for each case and backend."""
    cases: dict[str, dict[tuple[str, str], AttentionResult]] = {}
    for (case, kind, variant), result in rows_of(results, "attention", AttentionResult):
        of_case = cases.setdefault(case, {})
        of_case[ENCODING_OF.get(kind, kind), variant] = result
    rows = []
    for case, variants in cases.items():
        forward = over_rope({key: result.forward.ratio for key, result in variants.items()})
        step = over_rope({key: result.step.ratio for key, result in variants.items()})
        if not forward:
            continue
        for key, result in variants.items():
            row = [
                case,
                *key,
                format_milliseconds(result.forward.seconds),
                ratio_cell(forward[key]),
                format_milliseconds(result.step.seconds),
                ratio_cell(step[key]),
                f"{result.error_of_outputs:.1e}",
                f"{result.error_of_gradients:.1e}",
            ]
            rows.append(row)
    header = [
        "shape",
        "attention",
        "by",
        "forward, ms",
        "over the fastest RoPE",
        "and backward, ms",
        "over the fastest RoPE",
        "error of outputs",
        "of gradients",
    ]
    yield from titled("Attention with rotation, one layer", header, rows)
