"""One piece of a torture: a run under `megatape supervise --ranks 2 --standby`, with faults until its last step."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from megatape.errors import ExitStatus
from megatape.run_folder import CORRUPTED, RunFolder, read_metrics
from tests.helpers.processes.local_ranks import running_ranks
from tests.helpers.processes.waiting import has_ended
from tests.helpers.processes.workers import ROOT
from tests.soak.corruption import CHECKPOINTS, corrupt
from tests.soak.disk import Disk
from tests.soak.injected import FOLDER_VARIABLE, command_path
from tests.soak.journal import Journal
from tests.soak.launch import Failure

NUM_RANKS = 2
# Seconds without a new step after which a run hangs. A busy machine is slow.
LIMIT = 600.0
POLL_INTERVAL = 0.05
# Interval, in faults, between those that come while the run is still restarting after the one before.
EARLY_FAULT_INTERVAL = 8
# Largest jump in a rank's clock, in seconds
LARGEST_JUMP = 7200.0
# Statuses when a supervisor's ranks die again and again before their first checkpoint
GAVE_UP = {128 + signal.SIGKILL, ExitStatus.DIED}
# Statuses on a full disk: at the start, later, at the end.
UNWRITTEN = {ExitStatus.USER_ERROR, ExitStatus.DIED, ExitStatus.NOT_SAVED}


class TorturedRun:
    """A run with faults.

    Args:
        config: Configuration file.
        folder: Run directory.
        logs: New folder for logs and for commands to ranks.
        disk: Disk holding the run directory.
        journal: The torture's journal.
        draw: Random number generator.
    """

    def __init__(self, config: Path, folder: RunFolder, logs: Path, disk: Disk, journal: Journal, draw: random.Random) -> None:
        self.folder = folder
        self.disk = disk
        self.draw = draw
        self.log = logs / "supervisor.log"
        self.commands = logs / "commands"
        self.commands.mkdir(parents=True)
        self._config = config
        self._journal = journal
        self._last_step = json.loads(config.read_text())["training"]["steps"]
        self._process = self._start()
        # Exit statuses that the supervisor may have after the last fault.
        self._allowed: set[int] = set()
        self._earlier_statuses: frozenset[int] = frozenset()

    def torture(self, mean_seconds: float, kinds: Iterator[str], limit: int) -> int:
        """Let faults happen until the run is complete, at most `limit` of them.

        Args:
            mean_seconds: Mean seconds from a new step after a fault to the next fault.
            kinds: Kinds of faults.
            limit: Maximum number of faults.

        Returns:
            Number of faults.

        Raises:
            Failure: The run makes no progress, or its supervisor ends with an unexpected status.
        """
        num_faults = 0
        try:
            self._wait_for_step_after(0)
            while num_faults < limit:
                time.sleep(self.draw.expovariate(1 / mean_seconds))
                before = self.newest_step()
                if self._is_complete() or before >= self._last_step:
                    break
                kind = KINDS[next(kinds)]
                num_faults += 1
                self._let_happen(kind, before, is_early=num_faults % EARLY_FAULT_INTERVAL == 0)
            self._wait_for_end()
        finally:
            self.kill()
        return num_faults

    def _let_happen(self, kind: "Kind", before: int, is_early: bool) -> None:
        # The supervisor may still be about to end because of the fault before.
        self._allowed = GAVE_UP | kind.statuses | self._earlier_statuses
        self._earlier_statuses = kind.statuses
        ranks = self.ranks()
        began = time.monotonic()
        hit = kind.act(self)
        entry: dict[str, Any] = {"event": "fault", "kind": kind.name, "hit": hit, "step": before}
        if not is_early:
            if kind.ends:
                # Until they end, the other ranks may still finish a step.
                self._wait(lambda: all(has_ended(process.pid) for process in ranks), "the end of the ranks")
            self._wait_for_step_after(max(before, self.newest_step()))
            entry["recovery"] = round(time.monotonic() - began, 2)
        self._journal.write(**entry)

    def newest_step(self) -> int:
        """Return the last recorded step."""
        return max(read_metrics(self.folder.metrics), default=0)

    def ranks(self) -> list[psutil.Process]:
        """Return the running ranks."""
        return running_ranks(self._process.pid)

    def victim(self) -> psutil.Process | None:
        """Return a random running rank, or None."""
        ranks = self.ranks()
        if not ranks:
            return None
        return self.draw.choice(ranks)

    @property
    def supervisor(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def command(self) -> list[str]:
        """Return the command line that trains the run."""
        program = str(ROOT / "megatape" / "__main__.py")
        module = str(Path(__file__).with_name("injected.py"))
        words = ["supervise", "--ranks", str(NUM_RANKS), "--standby", "--restarts", "1000000"]
        return [sys.executable, "-P", program, *words, "--import", module, "--config", str(self._config)]

    def environment(self) -> dict[str, str]:
        """Return the run's environment."""
        return os.environ | {FOLDER_VARIABLE: str(self.commands), "OMP_NUM_THREADS": "1"}

    def order(self, kind: str, amount: float) -> str:
        """Let a random rank carry out a fault before its next step. Returns a description."""
        rank = self.draw.randrange(NUM_RANKS)
        path = command_path(self.commands, rank)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"kind": kind, "amount": amount}))
        unfinished.rename(path)
        return f"rank {rank}: {kind} {amount:.2f}"

    def kill(self) -> None:
        """Kill all processes."""
        processes = []
        with suppress(psutil.Error):
            processes = psutil.Process(self._process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=30)
        self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command(), cwd=ROOT, env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )

    def _wait_for_step_after(self, step: int) -> None:
        """Wait until a step after `step` is made, or the run is complete."""
        self._wait(lambda: self.newest_step() > step or self._is_complete(), f"a step after {step}")

    def _wait_for_end(self) -> None:
        self._wait(self._is_complete, "the end of the run")

    def _is_complete(self) -> bool:
        """Whether the supervisor has ended after the last step."""
        return self._process.poll() == 0

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and start the supervisor again if it has ended as the last fault allows."""
        newest = self.newest_step()
        last_progress = time.monotonic()
        while not condition():
            self._start_again()
            step = self.newest_step()
            if step != newest:
                newest = step
                last_progress = time.monotonic()
            if time.monotonic() - last_progress > LIMIT:
                raise Failure(f"{what}: no step for {LIMIT:.0f} s\n{self._log_tail()}")
            time.sleep(POLL_INTERVAL)

    def _start_again(self) -> None:
        """Start an ended supervisor again, as a user would, and remove corrupted checkpoints, because the disk is small."""
        status = self._process.poll()
        if status is None or status == 0:
            return
        if status not in self._allowed:
            raise Failure(f"the supervisor ended with status {status}, allowed {sorted(self._allowed)}\n{self._log_tail()}")
        self._wait_for_orphans()
        for path in self.folder.checkpoints.glob(f"*{CORRUPTED}"):
            shutil.rmtree(path)
        self._journal.write(event="supervisor ended", status=status)
        self._process = self._start()

    def _wait_for_orphans(self) -> None:
        """Wait until an ended supervisor leaves no process. Ranks write a checkpoint."""
        deadline = time.monotonic() + LIMIT
        while _processes_of_group(self._process.pid):
            if time.monotonic() > deadline:
                raise Failure(f"processes are left after the end of the supervisor\n{self._log_tail()}")
            time.sleep(POLL_INTERVAL)

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-8000:]


def _processes_of_group(group: int) -> list[int]:
    """Return all running processes in a process group."""
    running = []
    for number in psutil.pids():
        with suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(number) == group and psutil.Process(number).status() != psutil.STATUS_ZOMBIE:
                running.append(number)
    return running


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: Name in the journal.
        act: Lets the fault happen, and returns what it hit.
        ends: Whether the fault ends the ranks, so that steps have to be made again.
        statuses: Exit statuses that the supervisor may have, besides 0 and those after several deaths in a row.
    """

    name: str
    act: Callable[[TorturedRun], str]
    ends: bool
    statuses: frozenset[int] = frozenset()


def _send(number: signal.Signals, process: psutil.Process | None) -> str:
    if process is None:
        return "no rank was running"
    with suppress(psutil.Error):
        process.send_signal(number)
    return f"process {process.pid}"


def _kill_a_rank(run: TorturedRun) -> str:
    return _send(signal.SIGKILL, run.victim())


def _kill_all_ranks(run: TorturedRun) -> str:
    return ", ".join(_send(signal.SIGKILL, process) for process in run.ranks())


def _kill_the_supervisor(run: TorturedRun) -> str:
    with suppress(ProcessLookupError):
        os.kill(run.supervisor, signal.SIGKILL)
    return f"process {run.supervisor}"


def _freeze_a_rank(run: TorturedRun) -> str:
    """Stop a rank for good, as if its host were lost. The supervisor kills it."""
    return _send(signal.SIGSTOP, run.victim())


def _pause_a_rank(run: TorturedRun) -> str:
    victim = run.victim()
    seconds = 0.1 + 3.9 * run.draw.random()
    hit = _send(signal.SIGSTOP, victim)
    time.sleep(seconds)
    _send(signal.SIGCONT, victim)
    return f"{hit} for {seconds:.1f} s"


def _slow_rank(run: TorturedRun) -> str:
    return run.order("slow", 0.5 + 2.5 * run.draw.random())


def _nan(run: TorturedRun) -> str:
    return run.order("nan", run.draw.random())


def _clock_jump(run: TorturedRun) -> str:
    return run.order("clock", LARGEST_JUMP * (2 * run.draw.random() - 1))


def _stop(run: TorturedRun) -> str:
    """Stop the run with the signal of a scheduler."""
    with suppress(ProcessLookupError):
        os.kill(run.supervisor, signal.SIGTERM)
    return f"SIGTERM to process {run.supervisor}"


def _full_disk(run: TorturedRun) -> str:
    seconds = 0.2 + 3.8 * run.draw.random()
    with run.disk.full(process.pid for process in run.ranks()):
        time.sleep(seconds)
    return f"{run.disk.name}, for {seconds:.1f} s"


def _full_disk_then_kill(run: TorturedRun) -> str:
    seconds = 2.0 * run.draw.random()
    with run.disk.full(process.pid for process in run.ranks()):
        time.sleep(seconds)
        hit = _kill_a_rank(run)
    return f"{run.disk.name}, for {seconds:.1f} s, then {hit}"


def _corrupt_the_newest_checkpoint(run: TorturedRun) -> str:
    valid = [path for path in run.folder.list_checkpoints() if (path / "manifest.json").exists()]
    with suppress(OSError):
        hit, _ = corrupt(run.draw.choice(sorted(CHECKPOINTS)), run.folder, valid, run.draw)
        return f"{hit}, then {_kill_a_rank(run)}"
    return f"the checkpoint was removed meanwhile, then {_kill_a_rank(run)}"


def _second_command(run: TorturedRun) -> str:
    """Start the same command a second time. The command is refused, unless the run has ended meanwhile."""
    done = subprocess.run(run.command(), cwd=ROOT, env=run.environment(), capture_output=True, text=True, timeout=LIMIT)
    if done.returncode not in (ExitStatus.USER_ERROR, ExitStatus.DONE):
        raise Failure(f"the second command ended with status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return f"status {done.returncode}"


KINDS = {
    kind.name: kind
    for kind in (
        Kind("kill a rank", _kill_a_rank, ends=True),
        Kind("kill all ranks", _kill_all_ranks, ends=True),
        Kind("kill the supervisor", _kill_the_supervisor, ends=True, statuses=frozenset({-signal.SIGKILL})),
        Kind("freeze a rank", _freeze_a_rank, ends=True),
        Kind("pause a rank", _pause_a_rank, ends=False),
        Kind("slow rank", _slow_rank, ends=False),
        Kind("NaN on a rank", _nan, ends=False),
        Kind("clock jump", _clock_jump, ends=False),
        Kind("stop", _stop, ends=True, statuses=frozenset({ExitStatus.UNFINISHED, 128 + signal.SIGTERM})),
        Kind("full disk", _full_disk, ends=False, statuses=frozenset(UNWRITTEN)),
        Kind("full disk, then kill a rank", _full_disk_then_kill, ends=True, statuses=frozenset(UNWRITTEN)),
        Kind("corrupted checkpoint, then kill a rank", _corrupt_the_newest_checkpoint, ends=True),
        Kind("second command", _second_command, ends=False),
    )
}
