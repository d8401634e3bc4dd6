"""Data sheets of GPUs are found by the names that drivers report."""

import pytest

from megatape.accounting.gpus import DRIVER_NAMES, GPUS, find_gpu


@pytest.mark.parametrize(
    ("device", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("A100-PCIE-40GB", "a100-40g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100 80GB PCIe", "a100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_driver_names(device: str, key: str) -> None:
    """An A100 with 40 GB got the data sheet of one with 80 GB."""
    assert find_gpu(device) is GPUS[key]


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GB200",
        "NVIDIA L40",
        "unknown",
    ],
)
def test_variants_with_other_peaks_are_unknown(device: str) -> None:
    """A variant with another peak would get a wrong utilization."""
    assert find_gpu(device) is None


def test_each_gpu_has_a_driver_name() -> None:
    assert DRIVER_NAMES.keys() == GPUS.keys()
