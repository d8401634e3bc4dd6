"""The Triton kernels, without a GPU: interpreted against the formula, and compiled for GPUs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.attention.attend import backends_by_priority, get_backend
from megatape.attention.backend import AttentionRequirements
from megatape.registry import AUTO
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_within

pytestmark = pytest.mark.numerics


@pytest.fixture(scope="module")
def interpreted() -> list[Any]:
    """What tests/kernels/interpreted.py prints."""
    command = [sys.executable, "-m", "tests.kernels.interpreted"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_kernels_equal_the_formula(interpreted: list[Any]) -> None:
    """Results and all gradients, with and without e, bias, groups, documents, ragged lengths and padded heads; rotations
    and the update with and without their parts."""
    for exact, differences in interpreted[0]:
        for name, difference in differences.items():
            assert_within(difference, bounds.ATTENTION if exact else bounds.KERNELS_BFLOAT16, name)


def test_loss_kernel_equals_the_formula(interpreted: list[Any]) -> None:
    """With soft-cap and z-loss and without, on one rank and on several, of which one has nothing but padding."""
    for exact, differences in interpreted[1]:
        for name, difference in differences.items():
            assert_within(difference, bounds.CROSS_ENTROPY if exact else bounds.LOSS_BFLOAT16, name)


def test_offsets_reach_beyond_32_bits(interpreted: list[Any]) -> None:
    """In tensors of 2^31 numbers and more, a 32-bit offset would point before the tensor, or to its beginning."""
    assert len(interpreted[2]) > 70
    for kernel, tensor, first, last in interpreted[2]:
        if tensor in ("bias", "parts"):
            continue  # numbers by distance are few
        weight = kernel.startswith("update") and tensor in ("gain", "up", "down")  # small, and read whole
        assert first == 0 if weight else first > 0.9, (kernel, tensor)
        assert last == 1, (kernel, tensor)


REFUSALS: dict[str, dict[str, Any]] = {
    "no bias of pairs": {"bias": "pair"},
    "moves the position state under a bias": {"bias": "distance"},
    "the device is 'cpu'": {"device_type": "cpu"},
    "not in torch.float16": {"dtype": torch.float16},
    "model.head_dim is 129": {"head_dim": 129},
    "model.head_dim is 63": {"head_dim": 63},
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_says_what_it_does_not_support(reason: str) -> None:
    supported = AttentionRequirements("cuda", True, "none", 128, torch.bfloat16, masked=True)
    assert get_backend("triton").unsupported_reason(supported) is None
    assert get_backend("triton").unsupported_reason(replace(supported, moves_state=False, bias="distance")) is None
    assert reason in str(get_backend("triton").unsupported_reason(replace(supported, **REFUSALS[reason])))


@pytest.mark.parametrize(
    ("moves_state", "head_dim", "dtype", "first"),
    [
        (True, 64, torch.bfloat16, "triton"),
        (True, 64, torch.float32, "sdpa"),
        (True, 128, torch.bfloat16, "sdpa"),
        (False, 64, torch.bfloat16, "sdpa"),
    ],
)
def test_preferred_to_pytorch_if_faster(moves_state: bool, head_dim: int, dtype: torch.dtype, first: str) -> None:
    """As measured; where it is forced, PyTorch goes first all the same."""
    need = AttentionRequirements("cuda", moves_state, "none", head_dim, dtype, masked=False)
    assert backends_by_priority(AUTO, need)[0] == first
    assert backends_by_priority("sdpa", need)[0] == "sdpa"
    assert backends_by_priority(AUTO, replace(need, device_type="cpu"))[0] == "sdpa"


# Architecture, and the launches of kernels.
COMPILED: dict[str, tuple[int, str, tuple[Any, ...]]] = {
    "A100, R 64": (80, "attention_launches", (64, torch.bfloat16)),
    "A100, R 128": (80, "attention_launches", (128, torch.bfloat16)),
    "A100, R 128, bias": (80, "attention_launches", (128, torch.bfloat16, True)),
    "H100, R 64": (90, "attention_launches", (64, torch.bfloat16)),
    "H100, R 128": (90, "attention_launches", (128, torch.bfloat16)),
    "RTX 4090, R 128": (89, "attention_launches", (128, torch.bfloat16)),
    "RTX 5090, R 64": (120, "attention_launches", (64, torch.bfloat16)),
    "RTX 5090, R 128": (120, "attention_launches", (128, torch.bfloat16)),
    "H100, update of the 7B model": (90, "position_launches", (32, 128)),
}


TWO_LOOPS = ("forward_kernel", "queries_kernel", "keys_kernel")  # without masks and with them


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_compiled_kernels_fit_a_gpu(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In bfloat16: its shared memory, products in tensor cores, loops with hardly a spilled register, and tiles found by 64-bit
    offsets."""
    from tests.kernels import compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    architecture, launches, arguments = COMPILED[case]
    with compiled.tiles_of(architecture):
        recorded = getattr(compiled, launches)(*arguments)
    for launch in recorded:
        found = compiled.compiled(launch, architecture)
        assert found.shared <= compiled.SHARED[architecture] * 1024, launch.kernel
        assert found.narrow == 0, launch.kernel
        assert len(found.loops) == 1 + (launch.kernel.__name__ in TWO_LOOPS), launch.kernel
        for products, spills, instructions in found.loops:
            assert products >= 12, launch.kernel
            share = 10 if launch.kernel.__name__ == "keys_kernel" else 20  # the fastest tile on an H200 has 7%
            assert spills <= instructions // share, (launch.kernel, spills, instructions)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100, 120])
def test_compiled_loss_kernel_fits_a_gpu(architecture: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two programs of 16 warps on a processor, so that the rows in work fit the cache; rows found by 64-bit offsets."""
    from tests.kernels import compiled
    from tests.kernels.launches import loss_launches

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (launch,) = loss_launches(2048, 128256)
    found = compiled.compiled(launch, architecture)
    assert found.registers * launch.tile.warps * 32 <= 2**16 // 2
    assert found.narrow == 0
