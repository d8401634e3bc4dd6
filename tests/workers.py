"""Real processes for distributed tests: start them, wait with a limit, and say which one failed or hung.

    run_workers("tests.training.cases:train_cases", world_size=2, payload={...}, folder=tmp_path)

calls `train_cases(payload, topology)` in every process, with a gloo process group set up, and returns what each returned
(JSON). A worker that outlives the limit is killed together with the others, and the error names it and shows its output.

Importing takes longer than most of what the workers do. So one server per test run, `python -m tests.workers`, imports everything
once, and each call forks its ranks from it: server -> a process for the call, which leads a process group -> one per rank.
"""

import atexit
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]


def run_workers(target: str, world_size: int, payload: Any, folder: Path, timeout: float = 180.0) -> list[Any]:
    """Results of `target` on ranks 0 .. world_size - 1. Raises AssertionError with the output of the rank at fault."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "payload.json").write_text(json.dumps(payload))
    for file in folder.glob("*.status"):  # of an earlier call
        file.unlink()
    environment = os.environ | {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group = _server().ask({"target": target, "folder": str(folder), "environment": dict(environment)})
    ranks = range(world_size)
    deadline = time.monotonic() + timeout
    try:
        while True:
            over = _status(folder, "call")
            statuses = {rank: _status(folder, f"rank{rank}") for rank in ranks}
            failed = [rank for rank in ranks if statuses[rank] not in (None, "0")]
            assert not failed, f"{target}: rank {failed[0]} failed\n{_tail(folder, f'rank{failed[0]}')}"
            if over is not None:
                assert over == "0", f"{target}: the ranks were not started\n{_tail(folder, 'call')}"
                break
            if time.monotonic() > deadline:
                hung = [rank for rank in ranks if statuses[rank] is None]
                logs = "\n".join(_tail(folder, f"rank{rank}") for rank in hung)
                raise AssertionError(f"{target}: ranks {hung} still running after {timeout:.0f} s, killed\n{logs}")
            time.sleep(0.02)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in ranks]


class Server:
    """The process that ranks are forked from, as its client."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.workers"]
        self.process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ask(self, request: dict[str, Any]) -> int:
        """Have a call started; returns its process group."""
        assert self.process.stdin and self.process.stdout
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
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _status(folder: Path, process: str) -> str | None:
    """What a rank or the call ended with, None while it runs."""
    file = folder / f"{process}.status"
    return file.read_text() if file.exists() else None


def _write_status(folder: Path, process: str, status: int) -> None:
    unfinished = folder / "status"
    unfinished.write_text(str(status))
    unfinished.rename(folder / f"{process}.status")


def _tail(folder: Path, name: str) -> str:
    log = folder / f"{name}.log"
    return f"--- {name} ---\n" + (log.read_text()[-4000:] if log.exists() else "")


def main() -> None:
    """The server: for each request, a line of JSON, fork a call and answer its process id."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    import megatape.training.run  # noqa: F401 (with all that it imports)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the calls: they leave their status in a file
    child = 0
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_call(json.loads(line))
        print(child, file=answers, flush=True)
    if child:  # whoever asked has ended, perhaps in the middle of a call
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _run_call(request: dict[str, Any]) -> NoReturn:
    """Fork the ranks and leave the exit status of each, then that of the call, in a file."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    folder = Path(request["folder"])
    _log_to(folder / "call.log")
    status = 1
    try:
        module, _, function = request["target"].partition(":")
        work = getattr(importlib.import_module(module), function)
        ranks = {}
        for rank in range(int(os.environ["WORLD_SIZE"])):
            child = os.fork()
            if child == 0:
                _run_rank(work, folder, rank)
            ranks[child] = rank
        while ranks:
            child, ended = os.wait()
            _write_status(folder, f"rank{ranks.pop(child)}", os.waitstatus_to_exitcode(ended))
        status = 0
    finally:
        _end(status, lambda: _write_status(folder, "call", status))


def _run_rank(work: Callable[[Any, Any], Any], folder: Path, rank: int) -> NoReturn:
    from megatape.runtime.launchers import discover
    from megatape.zero.distributed import initialize_distributed, shut_down

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    _log_to(folder / f"rank{rank}.log")
    status = 1
    try:
        topology = discover()
        initialize_distributed(topology)
        result = work(json.loads((folder / "payload.json").read_text()), topology)
        (folder / f"rank{rank}.json").write_text(json.dumps(result))
        shut_down()
        status = 0
    finally:
        _end(status)


def _log_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _end(status: int, last: Callable[[], object] = lambda: None) -> NoReturn:
    """End a forked process at once, without what its parent would do at its own end, after showing what was raised."""
    if status:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    last()
    os._exit(status)


if __name__ == "__main__":
    main()
