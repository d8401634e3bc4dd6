"""The speed and memory of GPUs, from the vendors' data sheets or from a JSON file."""

from pathlib import Path

from pydantic import Field

from megatape.config import Section
from megatape.errors import MissingPath, UserError, path_errors
from megatape.files import as_type, read_json


class Gpu(Section):
    """One accelerator and its share of the node's network."""

    name: str = Field(description="part of the name that the driver reports")
    memory: float = Field(gt=0, description="bytes of device memory")
    bfloat16_flops: float = Field(gt=0, description="dense matrix FLOP/s in bfloat16")
    memory_bandwidth: float = Field(gt=0, description="bytes/s of device memory")
    node_bandwidth: float = Field(gt=0, description="bytes/s that it can send to GPUs of its node")
    network_bandwidth: float = Field(
        gt=0, description="bytes/s that it can send to other nodes: that of one network adapter, if each GPU has its own"
    )


def _gpu(name: str, gib: float, tera_flops: float, memory_tb: float, node_gb: float, network_gbit: float) -> Gpu:
    return Gpu(
        name=name,
        memory=gib * 2**30,
        bfloat16_flops=tera_flops * 1e12,
        memory_bandwidth=memory_tb * 1e12,
        node_bandwidth=node_gb * 1e9,
        network_bandwidth=network_gbit / 8 * 1e9,
    )


# Memory is about what the driver reports as usable; the network is that of the vendors' reference systems.
GPUS = {
    "a100-40g": _gpu("A100", 39, 312, 1.56, 300, 200),
    "a100-80g": _gpu("A100", 79, 312, 2.04, 300, 200),
    "h100": _gpu("H100", 79, 989, 3.35, 450, 400),
    "h200": _gpu("H200", 139, 989, 4.8, 450, 400),
    "gh200": _gpu("GH200", 94, 989, 4.0, 450, 400),
    "b200": _gpu("B200", 178, 2250, 8.0, 900, 400),
    "l40s": _gpu("L40S", 44, 362, 0.864, 32, 200),
    "mi300x": _gpu("MI300X", 191, 1307, 5.3, 448, 400),
}


@path_errors()
def load_gpu(name: str) -> Gpu:
    """A GPU by its key in the table above, or from a JSON file. Raises UserError or FileNotFoundError."""
    if name in GPUS:
        return GPUS[name]
    path = Path(name)
    if path.suffix != ".json":
        raise UserError(f"GPU {name!r} is unknown: choose one of {', '.join(GPUS)}, or give a JSON file that describes it")
    if not path.is_file():
        raise MissingPath(f"no GPU description at {path}: give one of {', '.join(GPUS)}, or a JSON file")
    try:
        return as_type(read_json(path), Gpu)
    except ValueError as error:
        fields = "; ".join(f"{key}: {field.description}" for key, field in Gpu.model_fields.items())
        raise UserError(f"{path} does not describe a GPU: {error}. Expected is an object with {fields}") from None


def named(device_name: str) -> Gpu | None:
    """The GPU of the table with the name that the driver reports, or None."""
    return next((gpu for gpu in reversed(GPUS.values()) if gpu.name in device_name), None)
