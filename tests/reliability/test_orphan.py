"""A process stops when its launcher is gone, and is otherwise left alone."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.processes.workers import ROOT

RANK = """
    import os, signal, sys, time
    from megatape.reliability.orphan import stop_with_launcher
    signal.signal(signal.SIGTERM, lambda *_: (print("asked to stop", flush=True), os._exit(0)))
    stop_with_launcher(poll_interval=0.05)
    print(os.getpid(), flush=True)
    time.sleep(float(sys.argv[1]))
    print("left alone", flush=True)
"""
STARTER = """
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, *sys.argv[1:]])
    print(os.getpid(), flush=True)
    child.wait()
"""


@pytest.mark.parametrize(
    ("mark", "names", "killed", "answer"),
    [
        ("CROSS_RANK", ["launch.py"], 0, "asked to stop"),
        ("CROSS_RANK", ["deepspeed", "launch.py"], 0, "asked to stop"),
        ("CROSS_RANK", ["deepspeed", "launch.py"], 1, "asked to stop"),
        ("CROSS_RANK", ["remote_shell.py", "launch.py"], 0, "left alone"),
        ("TORCHELASTIC_RUN_ID", ["torchrun"], 0, "asked to stop"),
        ("", ["shell.py"], 0, "left alone"),
    ],
)
def test_kill_of_an_ancestor(tmp_path: Path, mark: str, names: list[str], killed: int, answer: str) -> None:
    """A rank stops if its launcher is killed, but not if another ancestor is.

    Args:
        mark: Environment variable that marks a rank.
        names: Programs starting one another, the last of which starts the rank.
        killed: Index of the killed program.
        answer: Output of the rank.
    """
    for name in names:
        (tmp_path / name).write_text(textwrap.dedent(STARTER))
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "MPI_"))}
    environment |= {"PYTHONPATH": str(ROOT)} | ({mark: "0"} if mark else {})
    words = [*(str(tmp_path / name) for name in [*names, "rank.py"]), "2" if answer == "left alone" else "30"]
    process = subprocess.Popen([sys.executable, *words], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    ids = [int(process.stdout.readline()) for _ in [*names, "rank"]]
    assert ids[0] == process.pid
    try:
        time.sleep(0.2)
        os.kill(ids[killed], signal.SIGKILL)
        assert process.stdout.readline().strip() == answer
    finally:
        process.stdout.close()
        for number in ids:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()
