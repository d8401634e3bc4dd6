"""Device and versions of the software."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import distributions

import torch
from pydantic import Field

from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import Key, Measurement, Result, Results


class Versions(Measurement):
    """Versions of Python, packages and CUDA, None if missing. Triton needs the C compiler at run time."""

    python: str
    torch: str | None
    triton: str | None
    deepspeed: str | None
    transformers: str | None
    numpy: str | None
    cuda: str | None = Field(None, alias="CUDA")
    cudnn: int | None = Field(None, alias="cuDNN")
    c_compiler: str | None = Field(None, alias="C compiler")

    def to_json(self) -> Result:
        """Return the line of the measurement. What is missing is null."""
        return self.model_dump(by_alias=True)


class Device(Measurement):
    """Device of the benchmark. A GPU has a capability, memory and processors, a CPU has threads.

    Attributes:
        name: Name of the device.
        capability: Compute capability.
        memory: Bytes of device memory.
        processors: Number of multiprocessors.
        cores: Number of cores of the host.
        threads: Number of threads of PyTorch.
    """

    name: str
    capability: str | None = None
    memory: int | None = None
    processors: int | None = None
    cores: int | None = None
    threads: int | None = None


def measure(bench: Bench) -> None:
    """Record the versions and the device."""
    bench.measure(("versions",), versions)
    describe_device: Callable[[], Device] = cpu
    if bench.device == "cuda":
        describe_device = gpu
    bench.measure(("device",), describe_device)


def versions() -> Versions:
    """Return the installed versions."""
    installed = {package.name: package.version for package in distributions()}
    return Versions(
        python=platform.python_version(),
        torch=installed.get("torch"),
        triton=installed.get("triton"),
        deepspeed=installed.get("deepspeed"),
        transformers=installed.get("transformers"),
        numpy=installed.get("numpy"),
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        c_compiler=shutil.which(os.environ.get("CC", "cc")),
    )


def gpu() -> Device:
    """Return the name and the sizes of the GPU."""
    found = torch.cuda.get_device_properties(0)
    return Device(
        name=found.name,
        capability=f"{found.major}.{found.minor}",
        memory=found.total_memory,
        processors=found.multi_processor_count,
        cores=os.cpu_count(),
    )


def cpu() -> Device:
    """Return the name and the cores of the processor."""
    return Device(
        name=platform.processor() or platform.machine(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
    )


def table(results: Results) -> Iterator[str]:
    """Yield the device and the versions as a sentence."""
    device = results.get(Key("machine", ("device",)), {})
    versions = results.get(Key("machine", ("versions",)), {})
    if not device.get("name"):
        return
    parts = [f"Measured on {device['name']}"]
    for name, text in versions.items():
        if name not in ("error", "C compiler"):
            parts.append(f"{name} {text or 'missing'}")
    yield ", ".join(parts) + "."
