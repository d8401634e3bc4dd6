"""Environments for parallel runs: threads, GPUs and the allocator."""

import os
import subprocess
import sys

import pytest

from megatape.lab.study.execution.pool import RunPool, default_jobs, threads_of_run


@pytest.mark.parametrize(
    ("num_gpus", "expected_jobs"),
    [
        pytest.param(0, 6, id="cores"),
        pytest.param(2, 2, id="GPUs"),
    ],
)
def test_default_is_a_run_per_core_or_gpu(monkeypatch: pytest.MonkeyPatch, num_gpus: int, expected_jobs: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)

    assert default_jobs(None) == expected_jobs
    assert default_jobs("deepspeed") == 1, "a launcher has all GPUs"


def test_parallel_runs_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models leave a second thread idle."""
    monkeypatch.delenv("MEGATAPE_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))

    assert threads_of_run(6) == "1"


# Prints the MiB that the allocator returns to the system when a tensor of 16 MiB is freed. The allocator's own count is used,
# because some kernels do not count page faults.
MEASURE_RETURNED_MEMORY = """
import ctypes, torch
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Mallinfo = type("Mallinfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo
allocated = lambda: mallinfo2().arena + mallinfo2().hblkhd
activations = torch.empty(2**22)
before = allocated()
del activations
print((before - allocated()) >> 20)
"""


def _returned_mib(environment: dict[str, str]) -> int:
    words = [sys.executable, "-c", MEASURE_RETURNED_MEMORY]
    return int(subprocess.run(words, env=environment, check=True, capture_output=True).stdout)


@pytest.mark.slow
def test_runs_on_a_cpu_keep_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)

    assert _returned_mib(RunPool(1, None).environments[0]) == 0
    assert _returned_mib(dict(os.environ)) == 16, "without the pool's environment"


def test_allocator_setting_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=0")

    assert RunPool(1, None).environments[0]["GLIBC_TUNABLES"] == "glibc.malloc.perturb=0"
