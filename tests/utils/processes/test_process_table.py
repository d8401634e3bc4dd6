"""The process table shows running, stopped and ended processes, and psutil agrees about their start."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from megatape.utils.processes import process_table
from megatape.utils.processes.process_table import boot_id, read_process
from tests.helpers.processes.waiting import wait_until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps until the test ends."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_start_of_this_process() -> None:
    start = read_process(os.getpid()).start_ticks / os.sysconf("SC_CLK_TCK")
    seconds_since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    age = time.time() - psutil.Process().create_time()
    assert seconds_since_boot - start == pytest.approx(age, abs=1.0)


def test_states_of_a_process(child: subprocess.Popen[bytes]) -> None:
    entry = read_process(child.pid)
    assert not entry.has_ended
    assert not entry.is_stopped

    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: read_process(child.pid).is_stopped, "the stop of the child", 10)
    assert not read_process(child.pid).has_ended

    child.kill()
    # Until this process waits for it, it is a zombie.
    wait_until(lambda: read_process(child.pid).has_ended, "the end of the child", 10)
    assert read_process(child.pid).start_ticks == entry.start_ticks
    child.wait()
    with pytest.raises(FileNotFoundError):
        read_process(child.pid)


def test_name_of_a_program_with_parentheses_and_spaces(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "600"])
    try:
        wait_until(lambda: "Z 1" in Path(f"/proc/{process.pid}/comm").read_text(), "the start of the program", 10)
        assert not read_process(process.pid).has_ended
    finally:
        process.kill()
        process.wait()


def test_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert boot_id() == boot_id() != ""
    monkeypatch.setattr(process_table, "BOOT_ID", tmp_path / "missing")
    assert boot_id() == ""
