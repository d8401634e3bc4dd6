"""The GPU: its versions, and its peak bandwidth and matmul throughput on matrices of the models' shapes."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import distributions

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.lab.benchmark.models import Shape, compute_dtype, compute_precision, shapes
from megatape.lab.benchmark.results import Result, Results, rows_of, titled
from megatape.lab.benchmark.timing import Timer
from megatape.lab.benchmark.worker import Bench
from megatape.utils.torch_internals import scaled_product

PACKAGES = ("torch", "triton", "deepspeed", "transformers", "numpy")


def machine(bench: Bench) -> None:
    """Measure nothing: read versions."""
    bench.measure("versions", versions)
    bench.measure("device", gpu if bench.device == "cuda" else cpu)


def versions() -> Result:
    """Versions of Python, packages and CUDA; None if missing. Triton needs the compiler at run time."""
    installed = {package.name: package.version for package in distributions()}
    found: Result = {"python": platform.python_version()} | {name: installed.get(name) for name in PACKAGES}
    found |= {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}
    return found | {"C compiler": shutil.which(os.environ.get("CC", "cc"))}


def gpu() -> Result:
    """Name and sizes of the GPU."""
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory": found.total_memory,
        "processors": found.multi_processor_count,
        "cores": os.cpu_count(),
    }


def cpu() -> Result:
    """Name and cores of the processor."""
    return {"name": platform.processor() or platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def table(results: Results) -> Iterator[str]:
    """The device and the versions, as a sentence."""
    device, versions = (results.get(f"machine/{name}", {}) for name in ("device", "versions"))
    known = {name: text for name, text in versions.items() if name not in ("error", "C compiler")}
    if device.get("name"):
        yield f"Measured on {device['name']}, " + ", ".join(f"{name} {text or 'missing'}" for name, text in known.items()) + "."


Product = Callable[[torch.device, int, int, int], Callable[[], Tensor]]  # of matrices with these rows, inner size and columns

# bytes, many times what caches hold
COPIED = 2**32
COPIED_TINY = 2**16


def peak_rates(bench: Bench) -> None:
    """Measure copies, then products in the dtype of runs, then those of FP8, without the scaling that training.fp8 adds."""
    timer = bench.timer
    dtype = compute_dtype(timer.device)
    bench.measure("copy", partial(_copy, timer, COPIED_TINY if bench.tiny else COPIED))
    kinds: dict[str, Product] = {compute_precision(timer.device): partial(_product, dtype), "fp8": _fp8}
    for kind, multiply in kinds.items():
        for name in ("155m", "1b", "7b"):
            for product, sizes in products(shapes(bench.tiny)[name]).items():
                bench.measure(f"{kind}/{name}/{product}", partial(_rate, timer, multiply, *sizes))


def products(shape: Shape) -> dict[str, tuple[int, int, int]]:
    """Rows, inner size and columns of the products of a training step that differ in size."""
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


def _copy(timer: Timer, count: int) -> Result:
    source = torch.ones(count, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    seconds = timer.median(lambda: target.copy_(source))
    return {"seconds": seconds, "bytes/s": 2 * count / seconds}


def _rate(timer: Timer, multiply: Product, rows: int, inner: int, columns: int) -> Result:
    seconds = timer.median(multiply(timer.device, rows, inner, columns))
    return {"seconds": seconds, "FLOP/s": 2 * rows * inner * columns / seconds}


def _product(dtype: torch.dtype, device: torch.device, rows: int, inner: int, columns: int) -> Callable[[], Tensor]:
    """On random numbers: zeros take less power, and a GPU is faster on them."""
    x, weight = (torch.randn(size, inner, device=device, dtype=dtype) for size in (rows, columns))
    return lambda: F.linear(x, weight)


def _fp8(device: torch.device, rows: int, inner: int, columns: int) -> Callable[[], Tensor]:
    x, weight = (torch.randn(size, inner, device=device).to(torch.float8_e4m3fn) for size in (rows, columns))
    one = torch.ones((), device=device)
    return lambda: scaled_product(x, weight, one)


def rates_table(results: Results) -> Iterator[str]:
    """A table with a row for each rate."""
    rows = []
    for words, r in rows_of(results, "ceilings"):
        rate = f"{r['bytes/s'] / 1e12:.2f} TB/s" if "bytes/s" in r else f"{r['FLOP/s'] / 1e12:.1f} TFLOP/s"
        rows.append([", ".join(words), rate])
    yield from titled("Ceilings", ["", "rate"], rows)
