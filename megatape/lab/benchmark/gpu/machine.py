"""Device and versions of the software."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import distributions

import torch

from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Result, Results

PACKAGES = ("torch", "triton", "deepspeed", "transformers", "numpy")


def measure(bench: Bench) -> None:
    """Record the versions and the device."""
    bench.measure("versions", versions)
    describe_device = cpu
    if bench.device == "cuda":
        describe_device = gpu
    bench.measure("device", describe_device)


def versions() -> Result:
    """Return the versions of Python, packages and CUDA, None if missing. Triton needs the C compiler at run time."""
    installed = {package.name: package.version for package in distributions()}
    found: Result = {"python": platform.python_version()}
    for name in PACKAGES:
        found[name] = installed.get(name)
    found["CUDA"] = torch.version.cuda
    found["cuDNN"] = torch.backends.cudnn.version()
    found["C compiler"] = shutil.which(os.environ.get("CC", "cc"))
    return found


def gpu() -> Result:
    """Return the name and the sizes of the GPU."""
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "memory": found.total_memory,
        "processors": found.multi_processor_count,
        "cores": os.cpu_count(),
    }


def cpu() -> Result:
    """Return the name and the cores of the processor."""
    return {
        "name": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def table(results: Results) -> Iterator[str]:
    """Yield the device and the versions as a sentence."""
    device = results.get("machine/device", {})
    versions = results.get("machine/versions", {})
    if not device.get("name"):
        return
    parts = [f"Measured on {device['name']}"]
    for name, text in versions.items():
        if name not in ("error", "C compiler"):
            parts.append(f"{name} {text or 'missing'}")
    yield ", ".join(parts) + "."
