"""Device, and software versions."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from typing import Any

import torch
from pydantic import Field

from megatape.lab.benchmark.figures.measurement import Measurement
from megatape.lab.benchmark.gpu.bench import Bench
from megatape.lab.benchmark.gpu.results import ResultKey, Results

# Cases, as in result keys.
VERSIONS = ("versions",)
DEVICE = ("device",)


class SoftwareVersions(Measurement):
    """Python, package and CUDA versions, None if missing. Triton needs the C compiler at run time."""

    python: str | None = None
    torch: str | None = None
    triton: str | None = None
    deepspeed: str | None = None
    transformers: str | None = None
    numpy: str | None = None
    cuda: str | None = Field(None, alias="CUDA")
    cudnn: int | None = Field(None, alias="cuDNN")
    c_compiler: str | None = Field(None, alias="C compiler")

    def to_json(self) -> dict[str, Any]:
        """Return the versions as JSON. Missing ones are null."""
        return self.model_dump(by_alias=True)

    def sentence_parts(self) -> Iterator[str]:
        """Yield each version with its name, skipping those that an earlier benchmark did not record."""
        for name, version in self.model_dump(by_alias=True, exclude_unset=True, exclude={"c_compiler"}).items():
            yield f"{name} {version or 'missing'}"


class MeasuredDevice(Measurement):
    """Measured device, with memory in bytes, host cores, a GPU's multiprocessors and PyTorch's threads on a CPU."""

    name: str | None = None
    capability: str | None = None
    memory: int | None = None
    processors: int | None = None
    cores: int | None = None
    threads: int | None = None


def measure(bench: Bench) -> None:
    """Record the versions and the device."""
    bench.measure(VERSIONS, versions)
    describe_device: Callable[[], MeasuredDevice] = cpu
    if bench.device == "cuda":
        describe_device = gpu
    bench.measure(DEVICE, describe_device)


def versions() -> SoftwareVersions:
    """Return the installed versions."""
    installed = {package.name: package.version for package in distributions()}
    return SoftwareVersions(
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


def gpu() -> MeasuredDevice:
    """Describe the GPU."""
    properties = torch.cuda.get_device_properties(0)
    return MeasuredDevice(
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        memory=properties.total_memory,
        processors=properties.multi_processor_count,
        cores=os.cpu_count(),
    )


def cpu() -> MeasuredDevice:
    """Describe the CPU."""
    return MeasuredDevice(
        name=platform.processor() or platform.machine(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
    )


def table(results: Results) -> Iterator[str]:
    """Yield a sentence, or nothing if the device is unknown."""
    device_result = results.get(ResultKey("machine", DEVICE))
    if device_result is None:
        return
    device = MeasuredDevice.model_validate(device_result.figures)
    if not device.name:
        return
    parts = [f"Measured on {device.name}"]
    versions_result = results.get(ResultKey("machine", VERSIONS))
    if versions_result is not None:
        parts += SoftwareVersions.model_validate(versions_result.figures).sentence_parts()
    yield ", ".join(parts) + "."
