"""What is measured on: the GPU, the versions of what runs on it, and which packages are missing."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

from megatape.benchmark.journal import Result
from megatape.benchmark.tables import Results
from megatape.benchmark.worker import Bench

PACKAGES = ("torch", "triton", "deepspeed", "transformers", "numpy")


def machine(bench: Bench) -> None:
    """Measure nothing: read versions."""
    bench.measure("versions", versions)
    bench.measure("device", gpu if bench.device == "cuda" else cpu)


def versions() -> Result:
    """Of Python, packages and CUDA; None for what is missing. Triton needs the compiler at run time."""
    found: Result = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    cudnn: int | None = torch.backends.cudnn.version()
    return found | {"CUDA": torch.version.cuda, "cuDNN": cudnn, "C compiler": shutil.which(os.environ.get("CC", "cc"))}


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
