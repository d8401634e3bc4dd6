"""Starting a run by two launchers, and reading the exit statuses."""

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

# A start printing nothing for this number of seconds hangs. A busy machine is slow.
LIMIT = 180.0


class Failure(AssertionError):
    """Difference or unexpected end found by the soak."""


class Start:
    """One start's processes, all in one process group.

    Attributes:
        group: Process group.
        folder: Folder for logs.
    """

    def __init__(self, group: int, folder: Path) -> None:
        self.group = group
        self.folder = folder
        self.began = time.time()

    def processes(self) -> list[psutil.Process]:
        """Return the running processes."""
        running = []
        for number in psutil.pids():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getpgid(number) == self.group:
                    process = psutil.Process(number)
                    if process.status() != psutil.STATUS_ZOMBIE:
                        running.append(process)
        return running

    def ranks(self) -> dict[int, int]:
        """Return the running ranks: rank -> process."""
        raise NotImplementedError

    def launchers(self) -> list[int]:
        """Return the processes that started the ranks."""
        raise NotImplementedError

    def statuses(self) -> list[int]:
        """Return the exit statuses that are known."""
        raise NotImplementedError

    def wait(self, condition: Callable[[], object], what: str) -> bool:
        """Wait until the condition holds or all processes have ended. Returns whether it held.

        Raises:
            Failure: There is no progress. The message has all ranks' stacks.
        """
        last_check = time.monotonic()
        last_progress = last_check
        size = 0
        while not condition():
            now = time.monotonic()
            if now - last_check > 0.1:
                last_check = now
                previous_size = size
                size = sum(log.stat().st_size for log in self.folder.glob("*.log"))
                if size != previous_size:  # each step is a line
                    last_progress = now
                if not self.processes():
                    return bool(condition())
                if now - last_progress > LIMIT:
                    raise Failure(f"{what}: no output for {LIMIT:.0f} s\n{self.show()}")
            time.sleep(0.005)
        return True

    def wait_for_end(self, besides: int = 0) -> None:
        """Wait until all processes have ended, except for process `besides` and the launchers if it is not 0."""
        ignored: set[int] = set()
        if besides:
            ignored = {besides, *self.launchers()}

        def have_ended() -> bool:
            running = {process.pid for process in self.processes()}
            return running <= ignored

        self.wait(have_ended, "the end of all processes")

    def kill(self) -> None:
        """Kill all processes, and wait until they have ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)
        self.wait_for_end()

    def show(self) -> str:
        """End the ranks, writing their stacks to the logs. Returns the last lines logged."""
        for process in self.ranks().values():
            for number in (signal.SIGCONT, signal.SIGABRT):
                with suppress(ProcessLookupError):
                    os.kill(process, number)
        time.sleep(2.0)
        return self.logs()

    def logs(self) -> str:
        """Return the last lines logged."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            text = path.read_text(errors="replace")
            parts.append(f"--- {path} ---\n{text[-6000:]}")
        return "\n".join(parts)


class ForkedStart(Start):
    """Ranks forked from the server in tests/helpers/processes/workers.py, saving the time for importing everything."""

    def __init__(self, words: list[str], num_ranks: int, folder: Path) -> None:
        self._workers = Workers(words, num_ranks, folder, "tests.soak.rank:main")
        with suppress(ProcessLookupError):
            # Wait until the forked process has its own group.
            while os.getpgid(self._workers.group) != self._workers.group:
                time.sleep(0.001)
        super().__init__(self._workers.group, folder)

    def ranks(self) -> dict[int, int]:
        running = {process.pid for process in self.processes()}
        ranks = {}
        for path in self.folder.glob("rank*.pid"):
            pid = int(path.read_text())
            if pid in running:
                ranks[int(path.stem.removeprefix("rank"))] = pid
        return dict(sorted(ranks.items()))

    def launchers(self) -> list[int]:
        return [self.group]

    def statuses(self) -> list[int]:
        statuses = [self._workers.status(rank) for rank in self._workers.ranks]
        return [status for status in statuses if status is not None]


class DeepSpeedStart(Start):
    """Ranks started by the `deepspeed` launcher."""

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
        ranks = {}
        for process in self.processes():
            with suppress(psutil.Error):
                rank = process.environ().get("RANK")
                if rank:
                    ranks[int(rank)] = process.pid
        return ranks

    def launchers(self) -> list[int]:
        ranks = self.ranks().values()
        return [process.pid for process in self.processes() if process.pid not in ranks]

    def statuses(self) -> list[int]:
        return []  # The launcher does not report its ranks' statuses.


STARTS: dict[str, Callable[[list[str], int, Path], Start]] = {"fork server": ForkedStart, "deepspeed": DeepSpeedStart}
