"""Real processes for distributed tests: start them, wait with a limit, and say which one failed or hung.

    run_workers("tests.training.cases:train_cases", world_size=2, payload={...}, folder=tmp_path)

calls `train_cases(payload, topology)` in every process, with a gloo process group set up, and returns what each returned
(JSON). A worker that outlives the limit is killed together with the others, and the error names it and shows its output.
"""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_workers(target: str, world_size: int, payload: Any, folder: Path, timeout: float = 180.0) -> list[Any]:
    """Results of `target` on ranks 0 .. world_size - 1. Raises AssertionError with the output of the rank at fault."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "payload.json").write_text(json.dumps(payload))
    port = free_port()
    workers = []
    for rank in range(world_size):
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        with (folder / f"rank{rank}.log").open("w") as log:
            command = [sys.executable, "-m", "tests.workers", target, str(folder)]
            workers.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + timeout
    try:
        while any(worker.poll() is None for worker in workers):
            failed = [rank for rank, worker in enumerate(workers) if worker.poll() not in (None, 0)]
            if failed:
                raise AssertionError(f"{target}: rank {failed[0]} failed\n{_tail(folder, failed[0])}")
            if time.monotonic() > deadline:
                hung = [rank for rank, worker in enumerate(workers) if worker.poll() is None]
                logs = "\n".join(_tail(folder, rank) for rank in hung)
                raise AssertionError(f"{target}: ranks {hung} still running after {timeout:.0f} s, killed\n{logs}")
            time.sleep(0.05)
        failed = [rank for rank, worker in enumerate(workers) if worker.returncode]
        assert not failed, f"{target}: rank {failed[0]} failed\n{_tail(folder, failed[0])}"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _tail(folder: Path, rank: int) -> str:
    return f"--- rank {rank} ---\n" + (folder / f"rank{rank}.log").read_text()[-4000:]


def main() -> None:
    from megatape.parallel.engine import initialize_distributed, shut_down
    from megatape.parallel.topology import discover

    target, folder = sys.argv[1], Path(sys.argv[2])
    module, _, function = target.partition(":")
    topology = discover()
    initialize_distributed(topology)
    result = getattr(importlib.import_module(module), function)(json.loads((folder / "payload.json").read_text()), topology)
    (folder / f"rank{topology.rank}.json").write_text(json.dumps(result))
    shut_down()


if __name__ == "__main__":
    main()
