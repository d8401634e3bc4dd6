"""Unit leases: dead, stopped or silent processes do not keep others waiting, whatever the clocks say."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.shared_folder.folder import PartialFolder
from megatape.data.prepare.shared_folder.unit_lease import UnitLease
from megatape.data.sources.source import Source
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.reliability.lease import LeaseTimeouts
from megatape.reliability.lease.heartbeat_monitor import HeartbeatMonitor
from megatape.reliability.lease.holder import this_process
from megatape.utils.files.atomic import write_atomically
from tests.helpers.processes.clock import Clock
from tests.helpers.processes.leases import elsewhere
from tests.helpers.processes.load import scaled
from tests.helpers.processes.waiting import has_ended
from tests.helpers.processes.workers import ROOT

TIMEOUTS = LeaseTimeouts(heartbeat_interval=10.0, expiry=120.0, poll_interval=1.0)
QUICK = LeaseTimeouts(heartbeat_interval=0.1, expiry=0.6, poll_interval=0.05)
# Program acquiring the lease at a path, and keeping it without heartbeats
HOLDER = """
import sys, time
from pathlib import Path
from megatape.data.prepare.shared_folder.unit_lease import DEFAULT_TIMEOUTS, UnitLease
from megatape.reliability.lease.heartbeat_monitor import HeartbeatMonitor
assert UnitLease(Path(sys.argv[1]), DEFAULT_TIMEOUTS, HeartbeatMonitor()).acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("megatape.reliability.lease.heartbeat_monitor.time.monotonic", clock)
    return clock


def lease(path: Path) -> UnitLease:
    return UnitLease(path, TIMEOUTS, HeartbeatMonitor())


def test_lease_excludes_others_while_its_process_lives(tmp_path: Path) -> None:
    path = tmp_path / "00003.claim"
    first = lease(path)
    second = lease(path)

    assert first.acquire()
    assert not second.acquire()

    first.release()
    assert second.acquire()


def test_lease_of_a_dead_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    path = tmp_path / "00003.claim"
    write_atomically(path, replace(this_process(), pid=2**22 + 1).content())

    assert lease(path).acquire()


@pytest.mark.parametrize("heartbeat", [0.0, 4e9], ids=["past", "future"])
def test_silence_is_measured_by_the_clock_of_this_process(tmp_path: Path, clock: Clock, heartbeat: float) -> None:
    """A process on another machine keeps its lease by new heartbeats, whatever that machine's clock says."""
    path = tmp_path / "00003.claim"
    write_atomically(path, elsewhere().content())
    waiting = lease(path)

    for number in range(3):
        os.utime(path, (heartbeat + number, heartbeat + number))
        assert not waiting.acquire()
        clock.now += TIMEOUTS.expiry - 1
        assert not waiting.acquire()

    clock.now += 1
    assert waiting.acquire()


def test_empty_lease_expires_early(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "00003.claim"
    path.touch()
    waiting = lease(path)

    assert not waiting.acquire()
    clock.now += TIMEOUTS.heartbeat_interval
    assert waiting.acquire()


def test_stopped_process_keeps_its_lease_only_by_heartbeats(tmp_path: Path, clock: Clock) -> None:
    """A running process keeps its lease without heartbeats, since it may be busy."""
    path = tmp_path / "00003.claim"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            waiting = lease(path)
            assert not waiting.acquire()
            clock.now += 2 * TIMEOUTS.expiry
            assert not waiting.acquire()
            os.utime(path)
            assert not waiting.acquire()

            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            assert not waiting.acquire()
            clock.now += TIMEOUTS.expiry
            assert waiting.acquire()
        finally:
            process.kill()


@pytest.fixture
def corpus(tmp_path: Path, tokenizer: Tokenizer) -> PreparationOptions:
    """Six text files in several units."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(6):
        text = " ".join(str(number * step % 997) for step in range(300))
        (folder / f"{number:02}.txt").write_text(text)
    return PreparationOptions(Source("text", (str(folder),), unit_bytes=4000), 0.1, tokenizer, 0)


def test_waiting_command_names_the_holder(
    corpus: PreparationOptions, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command also takes over a lost process's unit, even after a heartbeat in the future."""
    folder = PartialFolder(tmp_path / "out", QUICK)
    folder.create()
    path = folder.path / "00001.claim"
    path.write_bytes(elsewhere().content())
    os.utime(path, (4e9, 4e9))
    thread = threading.Thread(target=prepare, args=[corpus, tmp_path / "out"], kwargs={"timeouts": QUICK}, daemon=True)

    thread.start()
    thread.join(scaled(30))

    assert not thread.is_alive(), "prepare waits forever for a lease with a heartbeat in the future"
    assert (tmp_path / "out").exists()
    line = f"waiting for {path}, which process {os.getpid()} on host n7, since "
    assert capfd.readouterr().err.count(line) == 1


# Program preparing a corpus with two workers. The first one to write a unit stops itself before that.
DRIVER = """
import os, signal, sys
from pathlib import Path
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.prepare.passes.unit_passes import UnitPasses
from megatape.data.sources.source import Source
from megatape.data.tokenizers.files import load_tokenizer
from megatape.reliability.lease import LeaseTimeouts

stopped, model, output, *inputs = sys.argv[1:]
write = UnitPasses.write_pass

def stop(self, *arguments, **rest):
    try:
        with open(stopped, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:  # the other worker has stopped itself
        pass
    else:
        os.kill(os.getpid(), signal.SIGSTOP)
    write(self, *arguments, **rest)

UnitPasses.write_pass = stop  # also in the workers, which import this file
if __name__ == "__main__":
    options = PreparationOptions(Source("text", tuple(inputs), unit_bytes=4000), 0.1, load_tokenizer(Path(model)), 0)
    timeouts = LeaseTimeouts(heartbeat_interval=0.1, expiry=2.0, poll_interval=0.05)
    prepare(options, Path(output), workers=2, timeouts=timeouts)
"""


@pytest.mark.slow
def test_a_stopped_worker_does_not_stop_the_command(corpus: PreparationOptions, tmp_path: Path) -> None:
    """Another worker prepares its unit, and no worker outlives the command."""
    prepare(corpus, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    model = tmp_path / "tokenizer.model"
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    assert corpus.tokenizer is not None
    model.write_bytes(corpus.tokenizer.files[model.name])
    command = [sys.executable, str(driver), str(stopped), str(model), str(tmp_path / "out"), *corpus.source.inputs]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        errors = process.communicate(timeout=scaled(90))[1]
    except subprocess.TimeoutExpired:
        pytest.fail("the command waits forever for a stopped worker")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    assert process.returncode == 0, errors
    assert has_ended(int(stopped.read_text()))
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
