"""The Triton kernels, without a GPU: interpreted against the formula, and compiled for GPUs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from megatape.attention.attend import backends_by_priority, get_backend
from megatape.attention.backend import AttentionRequirements
from megatape.registry import AUTO
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import Bound, assert_within

pytestmark = pytest.mark.numerics


@pytest.fixture(scope="module")
def interpreted() -> dict[str, list[list[Any]]]:
    """Run tests/kernels/interpreted/ and return its Report, read from JSON."""
    command = [sys.executable, "-m", "tests.kernels.interpreted"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    report: dict[str, list[list[Any]]] = json.loads(process.stdout)
    return report


def assert_all_within(comparisons: list[list[Any]], float32_bound: Bound, bfloat16_bound: Bound) -> None:
    for exact, differences in comparisons:
        bound = bfloat16_bound
        if exact:
            bound = float32_bound
        for name, difference in differences.items():
            assert_within(difference, bound, name)


def test_kernels_equal_the_formula(interpreted: dict[str, list[list[Any]]]) -> None:
    """Compares results and gradients for attention, rotations and updates, with and without each optional argument."""
    assert_all_within(interpreted["kernels"], bounds.ATTENTION, bounds.KERNELS_BFLOAT16)


def test_loss_kernel_equals_the_formula(interpreted: dict[str, list[list[Any]]]) -> None:
    """Cases cover soft-capping, z-loss, and several ranks, one of them with padding only."""
    assert_all_within(interpreted["losses"], bounds.CROSS_ENTROPY, bounds.LOSS_BFLOAT16)


def test_kernels_are_operators_of_a_compiled_graph(interpreted: dict[str, list[list[Any]]]) -> None:
    """A call in a graph runs the same kernels, so results and gradients have the same bits."""
    assert len(interpreted["compiled"]) == 7
    for _, differences in interpreted["compiled"]:
        assert set(differences.values()) == {0.0}, differences


def test_offsets_reach_beyond_32_bits(interpreted: dict[str, list[list[Any]]]) -> None:
    """In tensors exceeding 2^31 numbers, a 32-bit offset would point before the tensor, or to its start."""
    assert len(interpreted["reaches"]) > 70
    for kernel, tensor, first, end in interpreted["reaches"]:
        if tensor in ("bias", "decay", "parts"):
            continue  # there are few numbers by distance
        assert end == 1, (kernel, tensor)
        if kernel.startswith("update") and tensor in ("gain", "up", "down"):
            assert first == 0, (kernel, tensor)  # small weights are read completely
        else:
            assert first > 0.9, (kernel, tensor)


# Weights, read by each program, gains, read for each tile, and weight gradients, partly written by each program
SMALL_TENSORS = ("gain", "up", "down", "d_gain", "d_up", "d_down")


def test_update_kernels_move_as_many_bytes_as_a_copy(interpreted: dict[str, list[list[Any]]]) -> None:
    """Each large tensor is moved once. Channels of a token share e0 and a, which are loaded for several channels at once."""
    names = set()
    for kernel, tensor, moved, size in interpreted["traffic"]:
        if tensor not in SMALL_TENSORS:
            assert moved == size, (kernel, tensor)
            names.add((kernel, tensor))
    assert len(names) == 5 + 8


# Reason -> unsupported requirements
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "no bias of pairs": {"bias": "pair"},
    "moves the position state under a bias by distance": {"bias": "distance"},
    "the device is 'cpu'": {"device_type": "cpu"},
    "not in torch.float16": {"dtype": torch.float16},
    "model.head_dim is 129": {"head_dim": 129},
    "model.head_dim is 63": {"head_dim": 63},
}
SUPPORTED = AttentionRequirements("cuda", True, "none", 128, torch.bfloat16, masked=True)


def test_supported_requirements_have_no_reason() -> None:
    backend = get_backend("triton")
    assert backend.unsupported_reason(SUPPORTED) is None
    assert backend.unsupported_reason(replace(SUPPORTED, averages_state=False, bias="distance")) is None
    assert backend.unsupported_reason(replace(SUPPORTED, bias="decay")) is None


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_unsupported_requirements_have_a_reason(reason: str) -> None:
    requirements = replace(SUPPORTED, **UNSUPPORTED[reason])
    assert reason in str(get_backend("triton").unsupported_reason(requirements))


@pytest.mark.parametrize(
    ("averages_state", "head_dim", "dtype", "preferred"),
    [
        (True, 64, torch.bfloat16, "triton"),
        (True, 64, torch.float32, "sdpa"),
        (True, 128, torch.bfloat16, "sdpa"),
        (False, 64, torch.bfloat16, "sdpa"),
    ],
)
def test_preferred_to_pytorch_if_faster(averages_state: bool, head_dim: int, dtype: torch.dtype, preferred: str) -> None:
    """On a GPU, `auto` prefers the backend that was faster in measurements. A forced backend precedes all others."""
    need = AttentionRequirements("cuda", averages_state, "none", head_dim, dtype, masked=False)
    assert backends_by_priority(AUTO, need)[0] == preferred
    assert backends_by_priority("sdpa", need)[0] == "sdpa"
    assert backends_by_priority(AUTO, replace(need, device_type="cpu"))[0] == "sdpa"


class CompiledCase(NamedTuple):
    """Kernels to compile for a GPU.

    Attributes:
        architecture: Compute capability, times ten.
        launches: Name of a function in tests/kernels/compiled.py returning launches.
        arguments: Arguments for that function.
    """

    architecture: int
    launches: str
    arguments: tuple[Any, ...]


COMPILED = {
    "A100, R 64": CompiledCase(80, "attention_launches", (64, torch.bfloat16)),
    "A100, R 128": CompiledCase(80, "attention_launches", (128, torch.bfloat16)),
    "A100, R 128, bias": CompiledCase(80, "attention_launches", (128, torch.bfloat16, True)),
    "H100, R 64": CompiledCase(90, "attention_launches", (64, torch.bfloat16)),
    "H100, R 128": CompiledCase(90, "attention_launches", (128, torch.bfloat16)),
    "A100, R 64, decay": CompiledCase(80, "attention_launches", (64, torch.bfloat16, False, True)),
    "H100, R 64, decay": CompiledCase(90, "attention_launches", (64, torch.bfloat16, False, True)),
    "H100, R 128, decay": CompiledCase(90, "attention_launches", (128, torch.bfloat16, False, True)),
    "RTX 4090, R 128, decay": CompiledCase(89, "attention_launches", (128, torch.bfloat16, False, True)),
    "RTX 4090, R 128": CompiledCase(89, "attention_launches", (128, torch.bfloat16)),
    "RTX 5090, R 64": CompiledCase(120, "attention_launches", (64, torch.bfloat16)),
    "RTX 5090, R 128": CompiledCase(120, "attention_launches", (128, torch.bfloat16)),
    "A100, update of the 7B model": CompiledCase(80, "position_launches", (32, 128)),
    "RTX 4090, update of the 7B model": CompiledCase(89, "position_launches", (32, 128)),
    "H100, update of the 155M model": CompiledCase(90, "position_launches", (12, 64)),
    "H100, update of the 1B model": CompiledCase(90, "position_launches", (16, 128)),
    "H100, update of the 7B model": CompiledCase(90, "position_launches", (32, 128)),
    "RTX 5090, update of the 7B model": CompiledCase(120, "position_launches", (32, 128)),
}
# Kernels with a loop without masks and a loop with them
TWO_LOOPS = ("forward_kernel", "queries_kernel", "keys_kernel")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_kernels_fit_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels in bfloat16 fit the shared memory, use tensor cores, hardly spill registers, and have 64-bit offsets."""
    from tests.kernels import compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    case = COMPILED[name]
    make_launches: Callable[..., Any] = getattr(compiled, case.launches)
    with compiled.tiles_of(case.architecture):
        launches = make_launches(*case.arguments)
    for launch in launches:
        kernel = launch.kernel.__name__
        resources = compiled.compile_launch(launch, case.architecture)
        assert resources.shared <= compiled.SHARED_KIB[case.architecture] * 1024, kernel
        assert resources.narrow == 0, kernel
        num_loops = 1
        if kernel in TWO_LOOPS:
            num_loops = 2
        assert len(resources.loops) == num_loops, kernel
        instructions_per_spill = 20
        if kernel == "keys_kernel":
            # 7% of the fastest tile's instructions on an H200 are spills, and 11% under a decay
            instructions_per_spill = 8
        num_products = 12
        if kernel == "update_kernel":
            num_products = 8
        for loop in resources.loops:
            assert loop.products >= num_products, kernel
            assert loop.spills * instructions_per_spill <= loop.instructions, kernel


@pytest.mark.slow
@pytest.mark.parametrize("model", [(12, 64), (16, 128), (32, 128)], ids=["155M", "1B", "7B"])
def test_instructions_of_updates_take_less_time_than_a_copy(
    model: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On an H200, memory limits the update's kernels only if their instructions can be issued faster than bytes arrive."""
    from tests.kernels import compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for launch in compiled.position_launches(*model):
        assert compiled.share_of_copy(launch) < 0.75, launch.kernel.__name__


@pytest.mark.slow
def test_compiled_update_fits_blackwell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.kernels import compiled

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for launch in compiled.position_launches(32, 128):
        resources = compiled.compile_launch(launch, 100)
        assert resources.shared <= compiled.SHARED_KIB[100] * 1024
        assert resources.narrow == 0


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100, 120])
def test_compiled_loss_kernel_fits_a_gpu(architecture: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A multiprocessor can run two programs of 16 warps, so their rows fit the cache. Rows have 64-bit offsets."""
    from tests.kernels import compiled
    from tests.kernels.launches import loss_launches

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (launch,) = loss_launches(2048, 128256)
    resources = compiled.compile_launch(launch, architecture)
    assert resources.registers * launch.tile.warps * 32 <= 2**16 // 2
    assert resources.narrow == 0
