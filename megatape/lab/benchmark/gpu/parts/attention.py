"""Times and errors of every backend, computing the attention of one layer, and whether its results repeat bit for bit.

Each is timed beside rotary attention with PyTorch's choice of the kernel, including rotating queries and keys. On a GPU, both
are replays of a CUDA graph, so launching kernels takes no time.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.lab.benchmark.figures.cells import ratio_cell
from megatape.lab.benchmark.figures.measurement import Measurement, Times
from megatape.lab.benchmark.figures.timing import Timer, captured
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.parts.attention_problem import (
    BASELINE,
    AttentionKind,
    AttentionProblem,
    AttentionVariant,
    relative_error,
)
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import measurements, over_rope, titled
from megatape.lab.benchmark.models.shapes import ModelShape, compute_dtype, shapes
from megatape.registry import BACKENDS
from megatape.utils.text.units import format_milliseconds

# SDPA's kernels, also measured one by one. The table's ratios are to the fastest one for rotary attention.
KERNELS = {
    "cuda": {
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
    "cpu": {"math": SDPBackend.MATH},
}
# Backends with a mode whose results repeat bit for bit, besides their default mode.
DETERMINISTIC_MODES = ("fa4",)
# Whether results repeat -> table cell
REPEATS = {True: "yes", False: "no", None: ""}
# Kind of attention -> encoding.
ENCODING_OF = {"plain": "rope", "moving": "tape"}


class AttentionSetting(NamedTuple):
    """Attention to compute. `has_documents`: several documents per sequence."""

    shape: str
    kind: AttentionKind
    has_documents: bool = False

    def case(self, variant: AttentionVariant) -> "AttentionCase":
        """Return a variant's case."""
        inputs = self.shape
        if self.has_documents:
            inputs += ", documents"
        return AttentionCase(inputs, self.kind, variant.label)


class AttentionCase(NamedTuple):
    """A backend computing attention.

    Attributes:
        inputs: Name of the shape, with ", documents" for several documents per sequence.
        kind: Attention kind.
        variant: Backend, with its kernel if one is selected.
    """

    inputs: str
    kind: str
    variant: str

    @property
    def encoding(self) -> str:
        """Encoding using this kind, or else the kind."""
        return ENCODING_OF.get(self.kind, self.kind)


SETTINGS = [
    AttentionSetting("155m", "plain"),
    AttentionSetting("155m", "moving"),
    AttentionSetting("1b", "plain"),
    AttentionSetting("1b", "moving"),
    AttentionSetting("1b", "plain", has_documents=True),
    AttentionSetting("1b", "moving", has_documents=True),
    AttentionSetting("7b", "plain"),
    AttentionSetting("7b", "moving"),
    AttentionSetting("8b", "plain"),
    AttentionSetting("8b", "moving"),
    AttentionSetting("155m", "distance bias"),
]


class AttentionResult(Measurement):
    """Largest relative errors, and times for the forward pass and for both passes (step).

    Attributes:
        error_of_outputs: Largest relative error of A v and A e.
        error_of_gradients: Largest relative error of the gradients.
        forward: Times for the forward pass.
        step: Times for both passes.
        repeats: Whether two steps had the same results, bit for bit. None if it was not tried.
    """

    error_of_outputs: float
    error_of_gradients: float
    forward: Times
    step: Times
    repeats: bool | None = None


def measure(bench: Bench) -> None:
    """Measure every backend that supports a setting."""
    timer = bench.timer
    for setting in SETTINGS:
        shape = shapes(bench.tiny)[setting.shape]
        variants = {}
        for variant in _variants(timer.device, setting, shape):
            case = setting.case(variant)
            if not bench.has_result(case):
                variants[case] = variant
        # Do not build the inputs for nothing.
        if not variants:
            continue
        problem = AttentionProblem(shape, setting.kind, setting.has_documents, timer.device)
        # Not every kernel supports documents, so the baseline has none.
        baseline = AttentionProblem(shape, "plain", False, timer.device)
        for case, variant in variants.items():
            bench.measure(case, partial(_measure_variant, timer, problem, variant, baseline))


def _variants(device: torch.device, setting: AttentionSetting, shape: ModelShape) -> Iterator[AttentionVariant]:
    """Yield the supported backends, SDPA with each kernel, and deterministic modes."""
    bias: BiasKind = "none"
    if setting.kind == "distance bias":
        bias = "distance"
    need = AttentionRequirements(
        device.type,
        setting.kind == "moving",
        bias,
        shape.model.head_dim,
        compute_dtype(device),
        setting.has_documents,
        grouped=shape.model.num_heads != shape.model.num_kv_heads,
    )
    for name in BACKENDS:
        if get_backend(name).unsupported_reason(need) is not None:
            continue
        yield AttentionVariant(name, name)
        if name in DETERMINISTIC_MODES:
            yield AttentionVariant(f"{name}, deterministic", name, deterministic=True)
        if name == BASELINE.backend and not setting.has_documents:
            for label, kernel in KERNELS[device.type].items():
                yield AttentionVariant(f"{name}, {label}", name, partial(sdpa_kernel, kernel))


def _measure_variant(
    timer: Timer, problem: AttentionProblem, variant: AttentionVariant, baseline: AttentionProblem
) -> AttentionResult:
    results = problem.step(variant)
    errors = []
    for result, exact in zip(results, problem.exact, strict=True):
        errors.append(relative_error(result, exact))
    repeats = all(torch.equal(*pair) for pair in zip(results, problem.step(variant), strict=True))
    num_outputs = len(problem.d_outputs)

    def compare(method: Callable[[AttentionProblem, AttentionVariant], object]) -> Times:
        action: Callable[[], object] = partial(method, problem, variant)
        base: Callable[[], object] = partial(method, baseline, BASELINE)
        if timer.device.type == "cuda":
            action = captured(action)
            base = captured(base)
        seconds, ratio = timer.compare(action, base)
        return Times(seconds=seconds, ratio=ratio)

    return AttentionResult(
        error_of_outputs=max(errors[:num_outputs]),
        error_of_gradients=max(errors[num_outputs:]),
        forward=compare(AttentionProblem.inference),
        step=compare(AttentionProblem.step),
        repeats=repeats,
    )


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per case."""
    by_inputs: dict[str, dict[AttentionCase, AttentionResult]] = {}
    for case, result in measurements(results, "attention", AttentionCase, AttentionResult):
        by_inputs.setdefault(case.inputs, {})[case] = result
    rows = []
    for cases in by_inputs.values():
        forward = over_rope({case: result.forward.ratio for case, result in cases.items()})
        step = over_rope({case: result.step.ratio for case, result in cases.items()})
        if not forward:
            continue
        for case, result in cases.items():
            row = [
                case.inputs,
                case.encoding,
                case.variant,
                format_milliseconds(result.forward.seconds),
                ratio_cell(forward[case]),
                format_milliseconds(result.step.seconds),
                ratio_cell(step[case]),
                f"{result.error_of_outputs:.1e}",
                f"{result.error_of_gradients:.1e}",
                REPEATS[result.repeats],
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
        "repeats",
    ]
    yield from titled("Attention with rotation, one layer", header, rows)
