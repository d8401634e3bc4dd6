"""Worker processes: a death is noticed at once, and all end with the command."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from megatape.data.prepare.workers.worker_pool import Death, WorkerPool
from tests.helpers.processes.load import scaled
from tests.helpers.processes.planted import planted_that_ran
from tests.helpers.processes.waiting import has_ended, wait_until

ROOT = Path(__file__).parents[4]
# Program starting two workers and killing itself. Workers notice that by signal or by pipe, as its argument says.
ORPHANS = """
import os, signal, sys, time
from megatape.data.prepare.workers.worker_pool import WorkerPool, kill_with_pool

def work(connection):
    if sys.argv[1] == "pipe":
        sys.platform = "other"
    kill_with_pool()
    connection.send(os.getpid())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    while True:  # send nothing, so that no closed pipe ends the worker
        time.sleep(1)

if __name__ == "__main__":
    with WorkerPool(work, (), 2) as pool:
        messages = pool.messages()
        print(next(messages), next(messages), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def send_forever(connection: Connection, pause: float) -> None:
    while True:
        connection.send(os.getpid())
        time.sleep(pause)


def send_and_exit(connection: Connection) -> None:
    connection.send("last words")


@pytest.mark.parametrize("num_workers", [4, pytest.param(48, marks=pytest.mark.slow)])
def test_death_of_a_worker_is_reported_within_a_second(num_workers: int) -> None:
    """The last worker to start is killed, then its replacement.

    Other workers always have messages. A pool that checked its processes only when no message is waiting would never do so.
    """
    running = set[int]()
    killed_pid = 0
    killed_at = 0.0
    deaths = list[Death]()
    with WorkerPool(send_forever, (0.002 * num_workers,), num_workers) as pool:
        for message in pool.messages():
            if isinstance(message, Death):
                assert time.monotonic() - killed_at < scaled(1.0)
                deaths.append(message)
                if len(deaths) == 2:
                    break
                running.remove(message.pid)
                pool.start_worker()
            elif message not in running and message != killed_pid:
                running.add(message)
                if len(running) == num_workers:
                    killed_pid = message
                    killed_at = time.monotonic()
                    os.kill(killed_pid, signal.SIGKILL)
        pids = pool.pids

    assert [death.how for death in deaths] == ["was killed by SIGKILL"] * 2
    assert len(pids) == num_workers - 1
    assert [pid for pid in pids if pid and not has_ended(pid)] == []


def test_clean_exit_ends_message_stream() -> None:
    with WorkerPool(send_and_exit, (), 1) as pool:
        assert list(pool.messages()) == ["last words"]


def test_workers_run_no_module_of_the_current_directory(planted_folder: Path) -> None:
    with WorkerPool(send_and_exit, (), 1) as pool:
        assert list(pool.messages()) == ["last words"]

    assert planted_that_ran(planted_folder) == ""


@pytest.mark.parametrize("noticed_by", ["signal", "pipe"])
def test_workers_end_with_the_command(tmp_path: Path, noticed_by: str) -> None:
    """Workers outliving a killed command would keep their leases and their memory."""
    driver = tmp_path / "driver.py"
    driver.write_text(ORPHANS)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(driver), noticed_by]

    run = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, timeout=scaled(60))

    pids = [int(pid) for pid in run.stdout.split()]
    assert len(pids) == 2
    assert run.returncode == -signal.SIGKILL
    wait_until(lambda: all(map(has_ended, pids)), "the end of the workers", 10)
