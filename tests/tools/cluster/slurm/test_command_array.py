"""Job arrays that split a command into tasks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatape.errors import UserError
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.tools.cluster.slurm.command_array import render_array
from tests.helpers.processes.command import Command

SNAPSHOT = Path("/shared/run/submissions/now")


COMMAND = "x\ntouch injected"


# Stand-in for sbatch, keeping its arguments
SBATCH = """#!/bin/sh
echo "$@" > {folder}/asked
echo "7;cluster"
"""

# Stand-in for Python, keeping a task's arguments and the path of its code
PYTHON = """#!/bin/sh
echo "$PYTHONSAFEPATH $PYTHONPATH" "$@" > {folder}/started
"""


def test_no_argument_or_folder_ends_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has the control character"):
        render_array("suite", ["study", "suite", "--launcher", COMMAND], 2, tmp_path, SNAPSHOT)
    hostile = Path(COMMAND)
    for out, snapshot in ((hostile, SNAPSHOT), (tmp_path, hostile)):
        with pytest.raises(UserError, match="has the control character"):
            render_array("suite", ["study", "suite"], 2, out, snapshot)


def test_suite(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("sbatch", SBATCH), ("python", PYTHON)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(folder=tmp_path))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    out = tmp_path / "a suite"
    status, printed, errors = command(
        "study", "suite", "--seeds", 2, "--rates", "1e-3", "--output", out, "--slurm", "--time 60"
    )
    assert (status, errors) == (0, "")
    assert printed.startswith(f"job 7, {len(SYNTHETIC_TASKS) * len(ENCODINGS)} tasks; logs: ")
    (script,) = out.glob("submissions/*/job.sbatch")
    assert (tmp_path / "asked").read_text() == f"--parsable --time 60 {script}\n"
    text = script.read_text()
    assert f"#SBATCH --array=0-{len(SYNTHETIC_TASKS) * len(ENCODINGS) - 1}\n" in text
    assert "#SBATCH --signal=B:TERM@120\n" in text

    subprocess.run(["bash", script], env=os.environ | {"SLURM_ARRAY_TASK_ID": "3"}, check=True)
    started = (tmp_path / "started").read_text()
    code = script.parent / "code"
    options = f"--seeds 2 --size tiny --output {out} --rates 0.001 --engine auto --test permutation --cell 3"
    assert started == f"1 {code} {code}/megatape/__main__.py study suite {options}\n"
    # A plan file and an array job select the runs in different ways.
    assert "not allowed with" in command("study", "suite", "--output", out, "--slurm", "", "--plan", "plan.json")[2]
