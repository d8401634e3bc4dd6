"""Peak bandwidth, and throughput in the matrix products that training needs."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

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
from megatape.utils.pytorch.torch_internals import scaled_product

# Bytes of the copied tensor, which is much larger than caches.
COPIED_BYTES = 2**32
TINY_COPIED_BYTES = 2**16


class ProductSizes(NamedTuple):
    """Sizes of a matrix product, [rows, inner] times [inner, columns]."""

    rows: int
    inner: int
    columns: int


# Makes random matrices of these sizes on a device. Returns a function that multiplies them.
ProductFactory = Callable[[torch.device, ProductSizes], Callable[[], Tensor]]


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
    num_bytes = COPIED_BYTES
    if bench.tiny:
        num_bytes = TINY_COPIED_BYTES
    bench.measure(("copy",), partial(_measure_copy, timer, num_bytes))
    factories: dict[str, ProductFactory] = {
        compute_precision(timer.device): partial(_product, dtype),
        "fp8": _fp8_product,
    }
    for kind, factory in factories.items():
        for name in ("155m", "1b", "7b"):
            for product, sizes in products(shapes(bench.tiny)[name]).items():
                bench.measure((kind, name, product), partial(_measure_product, timer, factory, sizes))


def products(shape: ModelShape) -> dict[str, ProductSizes]:
    """Return a training step's products by name."""
    tokens = shape.batch * shape.length
    width = shape.model.hidden_size
    inner = shape.model.mlp_size
    return {
        "projection": ProductSizes(tokens, width, width),
        "MLP up": ProductSizes(tokens, width, inner),
        "MLP down": ProductSizes(tokens, inner, width),
        "MLP up, of its weights": ProductSizes(inner, tokens, width),
        "head": ProductSizes(tokens, width, shape.model.vocab_size),
    }


def _measure_copy(timer: Timer, num_bytes: int) -> MeasuredRate:
    """Measure the rate of a copy."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    seconds = timer.median(lambda: target.copy_(source))
    return MeasuredRate(seconds=seconds, bytes_per_second=2 * num_bytes / seconds)


def _measure_product(timer: Timer, factory: ProductFactory, sizes: ProductSizes) -> MeasuredRate:
    """Measure the rate of a matrix product."""
    multiply = factory(timer.device, sizes)
    seconds = timer.median(multiply)
    flops = 2 * sizes.rows * sizes.inner * sizes.columns
    return MeasuredRate(seconds=seconds, flops_per_second=flops / seconds)


def _product(dtype: torch.dtype, device: torch.device, sizes: ProductSizes) -> Callable[[], Tensor]:
    """Return a product of random matrices. With zeros, which take less power, a GPU would be faster."""
    x = torch.randn(sizes.rows, sizes.inner, device=device, dtype=dtype)
    weight = torch.randn(sizes.columns, sizes.inner, device=device, dtype=dtype)
    return lambda: F.linear(x, weight)


def _fp8_product(device: torch.device, sizes: ProductSizes) -> Callable[[], Tensor]:
    """Return a product of random matrices in FP8."""
    x = torch.randn(sizes.rows, sizes.inner, device=device).to(torch.float8_e4m3fn)
    weight = torch.randn(sizes.columns, sizes.inner, device=device).to(torch.float8_e4m3fn)
    scale = torch.ones((), device=device)
    return lambda: scaled_product(x, weight, scale)


def table(results: Results) -> Iterator[str]:
    """Yield a table with a row per rate."""
    rows = []
    for name, rate in measurements(results, "ceilings", label, MeasuredRate):
        rows.append([name, rate.cell])
    yield from titled("Ceilings", ["", "rate"], rows)
