"""Real processes for distributed tests: start them, wait with a limit, and say which one failed or hung.

    run_workers("tests.training.cases:train_cases", world_size=2, payload={...}, folder=tmp_path)

calls `train_cases(payload, topology)` in every process, with a gloo process group set up, and returns what each returned
(JSON). A worker that outlives the limit is killed together with the others, and the error names it and shows its output.
"""

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
    for file in folder.glob("rank*.status"):  # of an earlier call
        file.unlink()
    environment = os.environ | {
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    ranks = range(world_size)
    with (folder / "workers.log").open("w") as log:
        command = [sys.executable, "-m", "tests.workers", target, str(folder)]
        workers = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + timeout
    try:
        while True:
            ended = workers.poll() is not None
            statuses = {rank: _status(folder, rank) for rank in ranks}
            failed = [rank for rank in ranks if statuses[rank] not in (None, "0")]
            assert not failed, f"{target}: rank {failed[0]} failed\n{_tail(folder, f'rank{failed[0]}')}"
            if ended:
                assert workers.returncode == 0, f"{target}: the ranks were not started\n{_tail(folder, 'workers')}"
                break
            if time.monotonic() > deadline:
                hung = [rank for rank in ranks if statuses[rank] is None]
                logs = "\n".join(_tail(folder, f"rank{rank}") for rank in hung)
                raise AssertionError(f"{target}: ranks {hung} still running after {timeout:.0f} s, killed\n{logs}")
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(workers.pid, signal.SIGKILL)
        workers.wait()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in ranks]


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _status(folder: Path, rank: int) -> str | None:
    """What the rank ended with, None while it runs."""
    file = folder / f"rank{rank}.status"
    return file.read_text() if file.exists() else None


def _tail(folder: Path, name: str) -> str:
    log = folder / f"{name}.log"
    return f"--- {name} ---\n" + (log.read_text()[-4000:] if log.exists() else "")


def main() -> None:
    """Import everything once, then fork the ranks: importing takes longer than most of what they do."""
    import megatape.training.run  # noqa: F401 (with all that it imports)

    target, folder = sys.argv[1], Path(sys.argv[2])
    module, _, function = target.partition(":")
    work = getattr(importlib.import_module(module), function)
    ranks = {}
    for rank in range(int(os.environ["WORLD_SIZE"])):
        child = os.fork()
        if child == 0:
            _run_rank(work, folder, rank)
        ranks[child] = rank
    while ranks:
        child, status = os.wait()
        unfinished = folder / "status"
        unfinished.write_text(str(os.waitstatus_to_exitcode(status)))
        unfinished.rename(folder / f"rank{ranks.pop(child)}.status")


def _run_rank(work: Callable[[Any, Any], Any], folder: Path, rank: int) -> NoReturn:
    from megatape.runtime.launchers import discover
    from megatape.zero.distributed import initialize_distributed, shut_down

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = 1
    try:
        topology = discover()
        initialize_distributed(topology)
        result = work(json.loads((folder / "payload.json").read_text()), topology)
        (folder / f"rank{rank}.json").write_text(json.dumps(result))
        shut_down()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
