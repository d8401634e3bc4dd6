"""Peak bandwidth, and throughput in the matrix products that training needs."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.figures.timing import Timer
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Results
from megatape.lab.benchmark.gpu.tables import label, measurements, titled
from megatape.lab.benchmark.models.shapes import ModelShape, compute_dtype, compute_precision, shapes
from megatape.utils.torch_internals import scaled_product

# Tensor size for the copy, much larger than caches.
COPIED_BYTES = 2**32
TINY_COPIED_BYTES = 2**16

# (device, rows, inner size, columns) -> function that multiplies random matrices.
ProductFactory = Callable[[torch.device, int, int, int], Callable[[], Tensor]]


class MeasuredRate(Measurement):
    """Duration and rate of a copy or a matrix product. Copied bytes count twice: they are read and written."""

    seconds: float
    bytes_per_second: float | None = Field(None, alias="bytes/s")
    flops_per_second: float | None = Field(None, alias="FLOP/s")

    @property
    def cell(self) -> str:
        """Table cell."""
        if self.bytes_per_second is not None:
            return f"{self.bytes_per_second / 1e12:.2f} TB/s"
        assert self.flops_per_second is not None
        return f"{self.flops_per_second / 1e12:.1f} TFLOP/s"


def measure(bench: Bench) -> None:
    """Measure a copy, then products in the runs' precision and in FP8, not including training.fp8's scaling."""
    timer = bench.timer
    dtype = compute_dtype(timer.device)
    num_bytes = TINY_COPIED_BYTES if bench.tiny else COPIED_BYTES
    bench.measure(("copy",), partial(_copy, timer, num_bytes))
    kinds: dict[str, ProductFactory] = {
        compute_precision(timer.device): partial(_product, dtype),
        "fp8": _fp8,
    }
    for kind, multiply in kinds.items():
        for name in ("155m", "1b", "7b"):
            for product, sizes in products(shapes(bench.tiny)[name]).items():
                bench.measure((kind, name, product), partial(_rate, timer, multiply, *sizes))


def products(shape: ModelShape) -> dict[str, tuple[int, int, int]]:
    """Return a training step's products as (rows, inner size, columns)."""
    tokens = shape.batch * shape.length
    width = shape.model.hidden_size
    inner = shape.model.mlp_size
    return {
        "projection": (tokens, width, width),
        "MLP up": (tokens, width, inner),
        "MLP down": (tokens, inner, width),
        "MLP up, of its weights": (inner, tokens, width),
        "head": (tokens, width, shape.model.vocab_size),
    }


def _copy(timer: Timer, num_bytes: int) -> MeasuredRate:
    source = torch.ones(num_bytes, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    seconds = timer.median(lambda: target.copy_(source))
    return MeasuredRate(seconds=seconds, bytes_per_second=2 * num_bytes / seconds)


def _rate(timer: Timer, multiply: ProductFactory, rows: int, inner: int, columns: int) -> MeasuredRate:
    seconds = timer.median(multiply(timer.device, rows, inner, columns))
    return MeasuredRate(seconds=seconds, flops_per_second=2 * rows * inner * columns / seconds)


def _product(dtype: torch.dtype, device: torch.device, rows: int, inner: int, columns: int) -> Callable[[], Tensor]:
    """Return a product of random matrices. With zeros, which take less power, a GPU would be faster."""
    x = torch.randn(rows, inner, device=device, dtype=dtype)
    weight = torch.randn(columns, inner, device=device, dtype=dtype)
    return lambda: F.linear(x, weight)


def _fp8(device: torch.device, rows: int, inner: int, columns: int) -> Callable[[], Tensor]:
    x = torch.randn(rows, inner, device=device).to(torch.float8_e4m3fn)
    weight = torch.randn(columns, inner, device=device).to(torch.float8_e4m3fn)
    scale = torch.ones((), device=device)
    return lambda: scaled_product(x, weight, scale)


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per rate."""
    rows = [[name, rate.cell] for name, rate in measurements(results, "ceilings", label, MeasuredRate)]
    yield from titled("Ceilings", ["", "rate"], rows)
