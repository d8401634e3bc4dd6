"""One run at a time in a folder: which processes are refused, and which take over."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from megatape.errors import LeaseLost
from megatape.reliability.lease import Lease, check_free
from megatape.reliability.lease.holder import this_process
from megatape.reliability.lease.timeouts import LeaseTimeouts
from tests.helpers.processes.clock import Clock
from tests.helpers.processes.leases import TIMEOUTS, elsewhere, take
from tests.helpers.processes.waiting import wait_until
from tests.helpers.processes.workers import ROOT

YEARS_SECONDS = 10**8
HOLDER = """
import sys, time
from pathlib import Path
from megatape.reliability.lease import Lease, LeaseTimeouts
lease = Lease(Path(sys.argv[1]), LeaseTimeouts(heartbeat_interval=0.1))
assert lease.attempt()
print("held", flush=True)
time.sleep(60)
"""


def test_a_dead_process_of_this_machine_is_replaced_at_once(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A process killed by kill -9 is dead even as a zombie. A stopped process is alive."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ValueError, match=f"process {process.pid} on host"):
            Lease(path).attempt()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the process table
        started = time.monotonic()
        lease = Lease(path)
        assert lease.attempt()
        assert time.monotonic() - started < 5
        lease.release()
    assert re.search(rf"process {process.pid} .*has ended: this run takes over", capfd.readouterr().err)


def test_another_process_with_the_same_number(path: Path) -> None:
    """The process id was reused, so the holder is dead."""
    first = take(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"started": "1"}))
    second = take(path)
    with pytest.raises(LeaseLost):
        wait_for_loss(first)
    second.release()
    first.release()


def wait_for_loss(lease: Lease) -> None:
    """Check the lease until LeaseLost is raised."""
    wait_until(lambda: lease.check(), "the loss of the lease", 5)


def test_a_hidden_process_is_alive(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process belongs to another user, on a host whose process table only shows a user's own processes."""
    lease = take(path)

    def hidden(pid: int) -> str:
        raise FileNotFoundError

    other = Lease(path, TIMEOUTS)
    monkeypatch.setattr("megatape.reliability.lease.holder._start_time", hidden)
    with pytest.raises(ValueError, match="is in use by a run"):
        other.attempt()
    lease.release()


def test_a_holder_elsewhere_is_refused_by_its_heartbeat_and_replaced_by_silence(path: Path) -> None:
    clock = Clock()
    lease = take(path, holder=elsewhere(), clock=clock)
    with pytest.raises(ValueError, match="on host n7"):
        take(path)
    with pytest.raises(ValueError, match=r"cannot tell .* on host n7, since .*, last heartbeat at 20.* UTC, now it is 20"):
        check_free(path, TIMEOUTS)
    lease.stop_heartbeats()
    started = time.monotonic()
    second = take(path)
    assert time.monotonic() - started >= TIMEOUTS.expiry
    # The process was suspended for an hour.
    clock.now += 3600
    with pytest.raises(LeaseLost, match="was taken over by process .* last heartbeat was 360"):
        lease.check()
    lease.release()
    second.check()
    second.release()
    assert not path.exists()


def test_an_old_lease_is_watched_before_it_is_replaced(path: Path) -> None:
    """After an outage of the file server every lease looks old. The holder's next heartbeat still protects it."""
    holder = take(path, holder=elsewhere())
    os.utime(path, (0, 0))
    with pytest.raises(ValueError, match="is in use"):
        take(path)
    holder.release()


@pytest.mark.parametrize("offset", [YEARS_SECONDS, -YEARS_SECONDS], ids=["future", "past"])
def test_only_changes_of_a_heartbeat_count(path: Path, offset: float) -> None:
    """A wrong clock may write any time: a dead holder is replaced, a live one is not."""
    holder = take(path, holder=elsewhere())
    holder.stop_heartbeats()
    other = Lease(path, TIMEOUTS)
    now = time.time() + offset
    for beat in (now, now + 0.1):
        os.utime(path, (beat, beat))
        if beat == now:
            assert not other.attempt()
        else:
            with pytest.raises(ValueError, match="is in use by a run"):
                other.attempt()
    started = time.monotonic()
    take(path).release()
    assert time.monotonic() - started >= TIMEOUTS.expiry


def test_a_file_server_that_is_away_silences_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During an outage no process can write a heartbeat or read one."""
    path.parent.mkdir()
    path.write_bytes(elsewhere().content())
    lease = Lease(path, LeaseTimeouts(heartbeat_interval=0.01, poll_interval=0.01))
    away = 0.0
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + away)
    assert not lease.attempt()
    away = 3600.0
    assert not lease.attempt()
    os.utime(path)
    with pytest.raises(ValueError, match="is in use by a run"):
        lease.attempt()


@pytest.mark.parametrize("content", ["", '{"host": "n7"'], ids=["empty", "torn"])
def test_a_lease_that_names_nobody_is_waited_for(path: Path, content: str) -> None:
    """The process may still be writing its lease, or was killed doing so. An empty one is waited for during one heartbeat."""
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match="unknown process"):
        check_free(path, TIMEOUTS)
    timeouts = replace(TIMEOUTS, expiry=TIMEOUTS.expiry if content else YEARS_SECONDS)
    lease = Lease(path, timeouts)
    started = time.monotonic()
    assert any(lease.attempt() for _ in range(50)), "waits without end"
    assert time.monotonic() - started >= (timeouts.expiry if content else timeouts.heartbeat_interval)
    lease.release()


@pytest.mark.parametrize("dead", [False, True], ids=["new", "taken over"])
def test_one_of_many_wins(path: Path, dead: bool) -> None:
    if dead:
        path.parent.mkdir()
        path.write_text(json.dumps(asdict(this_process()) | {"started": "1"}))
    leases = [Lease(path, LeaseTimeouts(settle=0.3)) for _ in range(8)]
    held = []

    def attempt(lease: Lease) -> None:
        try:
            if lease.attempt():
                held.append(lease)
        except ValueError:
            pass

    threads = [threading.Thread(target=attempt, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1
    held[0].check()
    held[0].release()
    assert list(path.parent.iterdir()) == []
