"""A folder that one study at a time writes to."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from megatape.study.runs import HUGE_PAGES, Machine, default_jobs, locked_study, threads_of_run


def test_a_command_says_that_it_waits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    entered = threading.Event()

    def enter() -> None:
        with locked_study(tmp_path, wait=True):
            entered.set()

    with locked_study(tmp_path):
        with pytest.raises(ValueError, match="is in use by another study, .*choose another folder"), locked_study(tmp_path):
            pass
        threading.Thread(target=enter, daemon=True).start()
        assert not entered.wait(0.2)
        assert f"{tmp_path} is in use by another study" in capfd.readouterr().err
    assert entered.wait(10), "it still waits for a lock that was released"


def test_as_many_runs_as_cores_each_with_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models leave a second thread idle. A GPU each where there are some; a launcher has them all."""
    monkeypatch.delenv("MEGATAPE_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    for gpus, jobs in ((0, 6), (2, 2)):
        monkeypatch.setattr("torch.cuda.device_count", lambda gpus=gpus: gpus)
        assert default_jobs(None) == jobs and default_jobs("deepspeed") == 1
    assert threads_of_run(6) == "1"


# Page faults of tensors that take the place of freed ones.
ALLOCATIONS = """
import resource, torch
for number in range(40):
    if number == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**20) for _ in range(20)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_runs_on_a_cpu_keep_the_memory_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is taken anew. What the user has set stays, here a threshold by which glibc gives all memory back."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    kept = Machine(1, None)._environments.get()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=0")
    given = Machine(1, None)._environments.get()
    assert kept["GLIBC_TUNABLES"] == HUGE_PAGES and given["GLIBC_TUNABLES"] == os.environ["GLIBC_TUNABLES"]
    faults = [
        int(subprocess.run([sys.executable, "-c", ALLOCATIONS], env=each, check=True, capture_output=True).stdout)
        for each in (kept, given)
    ]
    assert faults[0] < 100 and faults[1] > 10 * max(faults[0], 10), faults  # huge pages by default leave few in the second
