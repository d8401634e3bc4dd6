"""The Triton kernels, without a GPU: interpreted against the formula, and compiled for GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import bounds
from tests.bounds import assert_within


@pytest.fixture(scope="module")
def interpreted() -> list[Any]:
    """What tests/attention/interpreted.py prints."""
    command, environment = [sys.executable, "-m", "tests.attention.interpreted"], os.environ | {"TRITON_INTERPRET": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_kernels_equal_the_formula(interpreted: list[Any]) -> None:
    """Results and all gradients, with and without e, groups, documents, ragged lengths and padded heads."""
    for exact, differences in interpreted[0]:
        for name, difference in differences.items():
            assert_within(difference, bounds.ATTENTION if exact else bounds.KERNELS_BFLOAT16, name)


def test_offsets_reach_beyond_32_bits(interpreted: list[Any]) -> None:
    """In tensors of 2^31 numbers and more, a 32-bit offset would point before the tensor, or to its beginning."""
    assert len(interpreted[1]) > 50
    for kernel, tensor, first, last in interpreted[1]:
        assert 0.9 < first < last == 1, (kernel, tensor)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "head_dim"), [(80, 128), (90, 64), (90, 128)])
def test_compiled_kernels_fit_a_gpu(architecture: int, head_dim: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In bfloat16: shared memory of an A100, products in tensor cores, and loops without spilled registers but for a few."""
    from tests.attention.compiled import compiled, configuration

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for launch in configuration(head_dim, torch.bfloat16):
        found = compiled(launch, architecture)
        assert found.shared <= 163 * 1024, launch.kernel
        assert len(found.loops) == 2, launch.kernel  # what all queries see, and the rest
        for products, spills, instructions in found.loops:
            assert products >= 12, launch.kernel
            assert spills <= instructions // 25, (launch.kernel, spills, instructions)
