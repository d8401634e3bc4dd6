"""Times and errors of every backend, computing the attention of one layer.

Each is timed beside rotary attention with PyTorch's choice of the kernel, including rotating queries and keys.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements, BiasKind
from megatape.lab.benchmark.cells import ratio_cell
from megatape.lab.benchmark.gpu.attention_problem import BASELINE, Kind, Problem, Variant, relative_error
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Measurement, Results, Times
from megatape.lab.benchmark.gpu.tables import measurements, over_rope, titled
from megatape.lab.benchmark.models import Shape, compute_dtype, shapes
from megatape.lab.benchmark.timing import Timer
from megatape.registry import BACKENDS
from megatape.utils.units import format_milliseconds

# SDPA's kernels, also measured one by one. The table's ratios are to the fastest one for rotary attention.
KERNELS = {
    "cuda": {
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    },
    "cpu": {"math": SDPBackend.MATH},
}
# Kind of attention -> encoding.
ENCODING_OF = {"plain": "rope", "moving": "tape"}


class Setting(NamedTuple):
    """Attention to compute. `has_documents`: several documents per sequence."""

    shape: str
    kind: Kind
    has_documents: bool = False

    def case(self, variant: Variant) -> "AttentionCase":
        """Return a variant's case."""
        inputs = self.shape
        if self.has_documents:
            inputs += ", documents"
        return AttentionCase(inputs, self.kind, variant.label)


class AttentionCase(NamedTuple):
    """A backend computing attention.

    Attributes:
        inputs: Shape name, with ", documents" for several documents per sequence.
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
    Setting("155m", "plain"),
    Setting("155m", "moving"),
    Setting("1b", "plain"),
    Setting("1b", "moving"),
    Setting("1b", "plain", has_documents=True),
    Setting("1b", "moving", has_documents=True),
    Setting("7b", "plain"),
    Setting("7b", "moving"),
    Setting("8b", "plain"),
    Setting("8b", "moving"),
    Setting("155m", "distance bias"),
]


class AttentionResult(Measurement):
    """Largest relative errors, and times for the forward pass and for both passes (step)."""

    error_of_outputs: float
    error_of_gradients: float
    forward: Times
    step: Times


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
        problem = Problem(shape, setting.kind, setting.has_documents, timer.device)
        # Not every kernel supports documents, so the baseline has none.
        baseline = Problem(shape, "plain", False, timer.device)
        for case, variant in variants.items():
            bench.measure(case, partial(_measure_variant, timer, problem, variant, baseline))


def _variants(device: torch.device, setting: Setting, shape: Shape) -> Iterator[Variant]:
    """Yield the supported backends, and SDPA with each kernel."""
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
    )
    for name in BACKENDS:
        if get_backend(name).unsupported_reason(need) is not None:
            continue
        yield Variant(name, name)
        if name == BASELINE.backend and not setting.has_documents:
            for label, kernel in KERNELS[device.type].items():
                yield Variant(f"{name}, {label}", name, partial(sdpa_kernel, kernel))


def _measure_variant(timer: Timer, problem: Problem, variant: Variant, baseline: Problem) -> AttentionResult:
    errors = []
    for result, exact in zip(problem.step(variant), problem.exact, strict=True):
        errors.append(relative_error(result, exact))
    num_outputs = len(problem.d_outputs)

    def compare(method: Callable[[Problem, Variant], object]) -> Times:
        seconds, ratio = timer.compare(partial(method, problem, variant), partial(method, baseline, BASELINE))
        return Times(seconds=seconds, ratio=ratio)

    return AttentionResult(
        error_of_outputs=max(errors[:num_outputs]),
        error_of_gradients=max(errors[num_outputs:]),
        forward=compare(Problem.inference),
        step=compare(Problem.step),
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
