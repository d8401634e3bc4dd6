"""Speed and memory of GPUs, from the vendors' data sheets or a JSON file."""

import re
from pathlib import Path

from pydantic import Field

from megatape.config import Section
from megatape.errors import MissingPath, UserError, path_errors
from megatape.errors.suggestions import choose_one
from megatape.utils.files.json_files import read_json
from megatape.utils.values.validation import as_type

# Patterns of whole driver names, by key in GPUS. Variants with other peaks have no entry, such as an H100 on PCIe, an H200 NVL,
# a GB200 or a MIG instance. An A100 on PCIe has the same peak.
DRIVER_NAMES = {
    "a100-40g": r"(NVIDIA )?A100-(SXM4?|PCI[Ee])-40GB",
    "a100-80g": r"(NVIDIA )?(A100-(SXM4?|PCI[Ee])-80GB|A100 80GB PCI[Ee])",
    "h100": r"(NVIDIA )?H100 80GB HBM3",
    "h200": r"(NVIDIA )?H200",
    # The size is that of the host's memory.
    "gh200": r"(NVIDIA )?GH200 (120|480)GB",
    "b200": r"(NVIDIA )?B200",
    "l40s": r"(NVIDIA )?L40S",
    "mi300x": r"(AMD )?(Instinct )?MI300X( OAM| VF)?",
}


class Gpu(Section):
    """One GPU and its share of the node's host and network.

    Attributes:
        name: name of the kind of GPU in reports, such as A100
        memory: bytes of device memory
        bfloat16_flops: dense matrix FLOP/s in bfloat16
        memory_bandwidth: bytes/s of device memory
        node_bandwidth: bytes/s that it can send to GPUs of its node
        network_bandwidth: bytes/s that it can send to other nodes: that of one network adapter, if
            each GPU has its own
        host_link: bytes/s between it and host memory, in one direction (PCIe)
        host_bandwidth: bytes/s of host memory: its node's, divided by the node's GPUs
    """

    name: str
    memory: float = Field(gt=0)
    bfloat16_flops: float = Field(gt=0)
    memory_bandwidth: float = Field(gt=0)
    node_bandwidth: float = Field(gt=0)
    network_bandwidth: float = Field(gt=0)
    host_link: float = Field(32e9, gt=0)
    host_bandwidth: float = Field(50e9, gt=0)


def _gpu(
    name: str,
    gib: float,
    tflops: float,
    memory_tb: float,
    node_gb: float,
    network_gbit: float,
    host_link_gb: float,
    host_memory_gb: float,
) -> Gpu:
    """Convert the units of data sheets: GiB, TFLOP/s, TB/s, GB/s and Gbit/s."""
    return Gpu(
        name=name,
        memory=gib * 2**30,
        bfloat16_flops=tflops * 1e12,
        memory_bandwidth=memory_tb * 1e12,
        node_bandwidth=node_gb * 1e9,
        network_bandwidth=network_gbit * (1e9 / 8),
        host_link=host_link_gb * 1e9,
        host_bandwidth=host_memory_gb * 1e9,
    )


# Memory is about what the driver reports as usable. Network and host numbers are from the vendors' reference systems (a DGX
# H100 has 2 x 8 channels of DDR5-4800 for 8 GPUs, each on PCIe 5.0 x16).
GPUS = {
    "a100-40g": _gpu("A100", 39, 312, 1.56, 300, 200, 32, 51),
    "a100-80g": _gpu("A100", 79, 312, 2.04, 300, 200, 32, 51),
    "h100": _gpu("H100", 79, 989, 3.35, 450, 400, 64, 77),
    "h200": _gpu("H200", 139, 989, 4.8, 450, 400, 64, 77),
    "gh200": _gpu("GH200", 94, 989, 4.0, 450, 400, 450, 384),
    "b200": _gpu("B200", 178, 2250, 8.0, 900, 400, 64, 90),
    "l40s": _gpu("L40S", 44, 362, 0.864, 32, 200, 32, 77),
    "mi300x": _gpu("MI300X", 191, 1307, 5.3, 448, 400, 64, 77),
}


@path_errors()
def load_gpu(name: str) -> Gpu:
    """Return a GPU by its key in GPUS, or read it from a JSON file.

    Raises:
        UserError: The name is unknown, or the file does not describe a GPU.
        FileNotFoundError: The file is missing.
    """
    if name in GPUS:
        return GPUS[name]
    path = Path(name)
    if path.suffix != ".json":
        raise UserError(f"GPU {name!r} is unknown: {choose_one(name, GPUS)}, or give a JSON file that describes it")
    if not path.is_file():
        raise MissingPath(f"no GPU description at {path}: give one of {', '.join(GPUS)}, or a JSON file")
    try:
        return as_type(read_json(path), Gpu)
    except ValueError as error:
        fields = "; ".join(f"{key}: {field.description}" for key, field in Gpu.model_fields.items())
        raise UserError(f"{path} does not describe a GPU: {error}. Expected is an object with {fields}") from None


def find_gpu(device_name: str) -> Gpu | None:
    """Return the entry of GPUS that matches the driver's name for a device. None if it is unknown or ambiguous."""
    for key, pattern in DRIVER_NAMES.items():
        if re.fullmatch(pattern, device_name):
            return GPUS[key]
    return None
