"""Starts of a run: its processes, by two launchers, and what becomes of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.helpers.processes.workers import ROOT, Workers, free_port

LIMIT = 180.0  # seconds without a line of output, after which a start makes no progress; much, for a busy machine


class Failure(AssertionError):
    """What the soak has found."""


class Start:
    """The processes of one start of a run, all in one process group. folder: of their logs."""

    def __init__(self, group: int, folder: Path) -> None:
        self.group = group
        self.folder = folder
        self.began = time.time()

    def processes(self) -> list[psutil.Process]:
        """Those that are there."""
        found = []
        for number in psutil.pids():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(number) == self.group:
                    process = psutil.Process(number)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def ranks(self) -> dict[int, int]:
        """Rank -> process, of those that are there."""
        raise NotImplementedError

    def launchers(self) -> list[int]:
        """Processes that started the ranks."""
        raise NotImplementedError

    def statuses(self) -> list[int]:
        """Exit statuses of the ranks that the launcher has told."""
        raise NotImplementedError

    def wait(self, condition: Callable[[], object], what: str) -> bool:
        """Wait until the condition holds, or all processes have ended; returns whether it held.

        Raises Failure with the stacks of all ranks if neither happens and there is no progress."""
        progress = looked = time.monotonic()
        size = 0
        while not condition():
            now = time.monotonic()
            if now - looked > 0.1:
                looked = now
                before = size
                size = sum(log.stat().st_size for log in self.folder.glob("*.log"))
                if size != before:  # each step is a line
                    progress = now
                if not self.processes():
                    return bool(condition())
                if now - progress > LIMIT:
                    raise Failure(f"{what}: waited for, without any output for {LIMIT:.0f} s\n{self.show()}")
            time.sleep(0.005)
        return True

    def wait_for_end(self, besides: int = 0) -> None:
        """Wait until all processes have ended, but the launchers and `besides` if that is given."""
        spared = {besides, *self.launchers()} if besides else set()
        self.wait(lambda: not {process.pid for process in self.processes()} - spared, "the end of all processes")

    def kill(self) -> None:
        """Kill what is there, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self.wait_for_end()

    def show(self) -> str:
        """Where all ranks are, and the last lines of the logs. Ends them."""
        for process in self.ranks().values():
            for number in (signal.SIGCONT, signal.SIGABRT):
                with suppress(ProcessLookupError):
                    os.kill(process, number)
        time.sleep(2.0)
        return self.logs()

    def logs(self) -> str:
        """The last lines of the logs."""
        paths = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path} ---\n" + path.read_text(errors="replace")[-6000:] for path in paths)


class ForkedStart(Start):
    """Ranks that the server of tests/helpers/processes/workers.py forks, which takes less time than all their imports."""

    def __init__(self, words: list[str], num_ranks: int, folder: Path) -> None:
        self._workers = Workers(words, num_ranks, folder, "tests.soak.rank:main")
        with suppress(ProcessLookupError):
            while os.getpgid(self._workers.group) != self._workers.group:  # the server has only just forked it
                time.sleep(0.001)
        super().__init__(self._workers.group, folder)

    def ranks(self) -> dict[int, int]:
        there = {process.pid for process in self.processes()}
        pids = {int(path.stem.removeprefix("rank")): int(path.read_text()) for path in self.folder.glob("rank*.pid")}
        return {rank: process for rank, process in sorted(pids.items()) if process in there}

    def launchers(self) -> list[int]:
        return [self.group]

    def statuses(self) -> list[int]:
        return [status for rank in self._workers.ranks if (status := self._workers.status(rank)) is not None]


class DeepSpeedStart(Start):
    """Ranks of the `deepspeed` launcher."""

    def __init__(self, words: list[str], num_ranks: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        command = ["deepspeed", "--num_accelerators", str(num_ranks), "--master_port", str(free_port()), "--module"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the deepspeed command is
        with (folder / "deepspeed.log").open("w") as log:
            self._process = subprocess.Popen(
                [*command, "tests.soak.rank", *words],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        super().__init__(self._process.pid, folder)

    def processes(self) -> list[psutil.Process]:
        self._process.poll()
        return super().processes()

    def ranks(self) -> dict[int, int]:
        found = {}
        for process in self.processes():
            with suppress(psutil.Error):
                if rank := process.environ().get("RANK"):
                    found[int(rank)] = process.pid
        return found

    def launchers(self) -> list[int]:
        ranks = self.ranks().values()
        return [process.pid for process in self.processes() if process.pid not in ranks]

    def statuses(self) -> list[int]:
        return []  # the launcher's own says little


STARTS: dict[str, Callable[[list[str], int, Path], Start]] = {"fork server": ForkedStart, "deepspeed": DeepSpeedStart}
