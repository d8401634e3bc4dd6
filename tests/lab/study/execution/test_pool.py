"""Environments of parallel runs: threads, GPUs and the allocator."""

import os
import subprocess
import sys

import pytest

from megatape.lab.study.execution.pool import RunPool, default_jobs, threads_of_run


def test_default_is_a_run_per_core_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models leave a second thread idle. With GPUs, each run has one of them; a launcher has all of them."""
    monkeypatch.delenv("MEGATAPE_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    for gpus, jobs in ((0, 6), (2, 2)):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        assert default_jobs(None) == jobs
        assert default_jobs("deepspeed") == 1
    assert threads_of_run(6) == "1"


# Prints the MiB that the allocator returns to the system when a tensor of 16 MiB is freed. The allocator's own count is used,
# because some kernels do not count page faults.
GIVEN_BACK = """
import ctypes, torch
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Mallinfo = type("Mallinfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo
held = lambda: mallinfo2().arena + mallinfo2().hblkhd
activations = torch.empty(2**22)
before = held()
del activations
print((before - held()) >> 20)
"""


@pytest.mark.slow
def test_runs_on_a_cpu_keep_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own setting is kept."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    given_back = [
        int(subprocess.run([sys.executable, "-c", GIVEN_BACK], env=environment, check=True, capture_output=True).stdout)
        for environment in (RunPool(1, None).environments[0], dict(os.environ))
    ]
    assert given_back == [0, 16]
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=0")
    assert RunPool(1, None).environments[0]["GLIBC_TUNABLES"] == "glibc.malloc.perturb=0"
