"""Real processes for distributed tests: starting them, waiting with a time limit, and naming those that failed or hung.

    run_workers("tests.helpers.runs.training_cases:train_cases", world_size=2, payload={...}, folder=tmp_path)

calls `train_cases(payload, topology)` in every process, with a gloo process group set up, and returns what each returned
(JSON). A worker that outlives the limit is killed together with the others, and the error names it and shows its output.

    with Workers(["pretrain", "--config", path], world_size=2, folder=tmp_path) as workers: ...

runs a command of megatape in every process, as a launcher would start it.

Importing takes longer than most of the work. So each test run starts one server, `python -m tests.helpers.processes.workers`,
which imports everything once. Each call forks its ranks from the server: server -> a process per call, leading a process
group -> one process per rank.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tests.helpers.processes.waiting import has_ended, wait_until

ROOT = Path(__file__).parents[3]
MEGATAPE = "megatape.commands.cli.main:main"

# The training loop and what DeepSpeed imports at the first step only.
IMPORTED_BY_TRAINING = ("megatape.training.pretrain", "megatape.commands.cli.main", "deepspeed.module_inject.auto_ep_layer")
# `megatape evaluate`, and what model code imports from transformers
WITH_TRANSFORMERS = ("megatape.lab.tasks.engine.runner", "transformers.modeling_utils", "transformers.generation")


class Workers:
    """Ranks 0 .. world_size - 1, logging to FOLDER/rank<r>.log. As a context manager, kills them at its end.

    Args:
        work: Words for `command`, which takes them and returns an exit status, or "module:function", called as described
            in `run_workers`.
        world_size: Number of ranks.
        folder: Folder for logs and statuses, created if needed.
        command: Function "module:function" running these words.
        imports: Modules not needed by training, imported once for all ranks.

    Attributes:
        port: Port for the ranks' store.
    """

    def __init__(
        self, work: list[str] | str, world_size: int, folder: Path, command: str = MEGATAPE, imports: tuple[str, ...] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("status", "pid"):  # left by an earlier call
            for file in folder.glob(f"*.{kind}"):
                file.unlink()
        self.port = free_port()
        places = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size, "MASTER_PORT": self.port}
        environment = os.environ | {name: str(value) for name, value in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
        self.folder = folder
        self.ranks = range(world_size)
        request: dict[str, Any] = {"work": work, "command": command, "imports": imports}
        request |= {"folder": str(folder), "environment": dict(environment)}
        self.group = _server().ask(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Kill all ranks and wait for their ends: on a busy machine, a killed process can live on for a moment."""
        self.signal(signal.SIGKILL)
        pids = [int(file.read_text()) for file in self.folder.glob("rank*.pid")]
        wait_until(lambda: all(has_ended(pid) for pid in pids), "the end of killed ranks", 30, interval=0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all ranks, as a terminal would."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def kill(self, rank: int) -> None:
        """Kill one rank."""
        os.kill(int((self.folder / f"rank{rank}.pid").read_text()), signal.SIGKILL)

    def status(self, rank: int) -> int | None:
        """Return a rank's exit status, or None while it is running. Raises AssertionError if starting the ranks failed."""
        file = self.folder / f"rank{rank}.status"
        call = self.folder / "call.status"
        if not file.exists() and call.exists() and call.read_text() != "0":
            raise AssertionError(f"the ranks were not started\n{_tail(self.folder, 'call')}")
        return int(file.read_text()) if file.exists() else None

    def running(self) -> list[int]:
        """Return the ranks still running."""
        return [rank for rank in self.ranks if self.status(rank) is None]

    def logs(self, ranks: list[int] | None = None) -> str:
        """Return the last output from these ranks, by default from all."""
        return "\n".join(_tail(self.folder, f"rank{rank}") for rank in (self.ranks if ranks is None else ranks))

    def wait(self, condition: Callable[[], object], what: str, timeout: float) -> None:
        """Wait until the condition holds.

        Args:
            condition: Returns whether to stop waiting.
            what: Condition in words, a noun phrase for the error.
            timeout: Seconds on an idle machine (tests/helpers/processes/load.py).

        Raises:
            AssertionError: The time is up. The message shows the output from ranks still running.
        """

        def details() -> str:
            running = self.running()
            return f"ranks {running} still running, killed\n{self.logs(running)}"

        wait_until(condition, what, timeout, details=details)

    def statuses(self, timeout: float = 90.0) -> list[int | None]:
        """Wait for all ranks to exit; returns their exit statuses."""
        self.wait(lambda: not self.running(), "the end", timeout)
        return [self.status(rank) for rank in self.ranks]


def run_workers(
    target: str, world_size: int, payload: Any, folder: Path, timeout: float = 180.0, imports: tuple[str, ...] = ()
) -> list[Any]:
    """Call `target` on each rank.

    Args:
        target: Function "module:function" taking the payload and the topology. JSON can represent its result.
        world_size: Number of ranks.
        payload: First argument for `target`. JSON can represent it.
        folder: Folder for logs and results, created if needed.
        timeout: Seconds on an idle machine.
        imports: See `Workers`.

    Returns:
        Results by rank.

    Raises:
        AssertionError: A rank failed. The message has its output.
    """

    def have_ended() -> bool:
        statuses = {rank: workers.status(rank) for rank in workers.ranks}
        failed = [rank for rank, status in statuses.items() if status]
        assert not failed, f"{target}: rank {failed[0]} failed\n{workers.logs(failed[:1])}"
        return None not in statuses.values()

    with start_workers(target, world_size, payload, folder, imports) as workers:
        workers.wait(have_ended, target, timeout)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


def start_workers(target: str, world_size: int, payload: Any, folder: Path, imports: tuple[str, ...] = ()) -> Workers:
    """Start ranks calling `target`, for tests watching, signaling or killing them. Arguments as in `run_workers`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "payload.json").write_text(json.dumps(payload))
    return Workers(target, world_size, folder, imports=imports)


class Server:
    """Client talking to the process from which ranks are forked."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.helpers.processes.workers"]
        self.process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ask(self, request: dict[str, Any]) -> int:
        """Start a call; returns its process group."""
        assert self.process.stdin
        assert self.process.stdout
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, "the server of the test ranks has ended"
        return int(answer)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@functools.cache
def _server() -> Server:
    server = Server()
    atexit.register(server.close)
    return server


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _write(folder: Path, name: str, number: int) -> None:
    """Write the file atomically."""
    unfinished = folder / f"{name}.tmp"
    unfinished.write_text(str(number))
    unfinished.rename(folder / name)


def _tail(folder: Path, name: str) -> str:
    log = folder / f"{name}.log"
    return f"--- {name} ---\n" + (log.read_text()[-4000:] if log.exists() else "")


def main() -> None:
    """Run the server: for each request, a JSON line, fork a call and reply with its process id."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Standard output has replies only. Imported modules print to standard error.
    for module in IMPORTED_BY_TRAINING:
        importlib.import_module(module)
    importlib.import_module("megatape.utils.text.terminal").show_log()
    gc.freeze()  # the ranks collect garbage without touching, and so copying, what they share

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the calls: they write their status to a file
    child = 0
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_call(json.loads(line))
        print(child, file=answers, flush=True)
    if child:  # The client has exited, perhaps during a call.
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _run_call(request: dict[str, Any]) -> NoReturn:
    """Fork the ranks, writing each exit status to a file, and finally the call's own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    folder = Path(request["folder"])
    _log_to(folder / "call.log")
    status = 1
    try:
        for module in request["imports"]:
            importlib.import_module(module)
        work = _work(request["work"], request["command"], folder)
        ranks = {}
        for rank in range(int(os.environ["WORLD_SIZE"])):
            child = os.fork()
            if child == 0:
                _run_rank(work, folder, rank)
            ranks[child] = rank
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # meant for the ranks
        while ranks:
            child, ended = os.wait()
            _write(folder, f"rank{ranks.pop(child)}.status", os.waitstatus_to_exitcode(ended))
        status = 0
    finally:
        _end(status, lambda: _write(folder, "call.status", status))


def _work(work: list[str] | str, command: str, folder: Path) -> Callable[[], int]:
    """Run one rank, and return its exit status."""
    module, _, function = (command if isinstance(work, list) else work).partition(":")
    target = getattr(importlib.import_module(module), function)
    if isinstance(work, list):
        return lambda: target(work)

    def call() -> int:
        from megatape.distributed.launch.launchers import set_up_ranks
        from megatape.zero.setup.process_group import initialize_distributed, shut_down

        topology = set_up_ranks()
        initialize_distributed(topology)
        result = target(json.loads((folder / "payload.json").read_text()), topology)
        (folder / f"rank{topology.rank}.json").write_text(json.dumps(result))
        shut_down()
        return 0

    return call


def _run_rank(work: Callable[[], int], folder: Path, rank: int) -> NoReturn:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    _write(folder, f"rank{rank}.pid", os.getpid())
    _log_to(folder / f"rank{rank}.log")
    status = 1
    try:
        status = work()
    finally:
        _end(status)


def _log_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _end(status: int, last: Callable[[], object] = lambda: None) -> NoReturn:
    """Print the exception, if any, and end a forked process at once, without its parent's exit handlers."""
    if sys.exception():
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    last()
    os._exit(status)


if __name__ == "__main__":
    main()
