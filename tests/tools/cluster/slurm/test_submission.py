"""Submission of a batch script, and the snapshot of the code."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from megatape.errors import UserError
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.job_script import render_job
from megatape.tools.cluster.slurm.submission import submit, take_snapshot
from tests.helpers.cluster.jobs import new_job
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT

# Stand-in for sbatch, keeping its arguments
SBATCH = """#!/bin/sh
echo "$@" > {folder}/asked
echo "7;cluster"
"""


def test_no_value_becomes_an_option(array: JobArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch gets an absolute path."""
    (tmp_path / "sbatch").write_text(SBATCH.format(folder=tmp_path))
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    directory = Path("--wrap=touch PWNED #")
    directory.mkdir()
    submission = submit(directory, array.configs, partial(render_job, array, new_job("tiny", 1, 1, False)))
    assert submission.job_id == "7"
    assert submission.snapshot.is_absolute()
    assert (tmp_path / "asked").read_text() == f"--parsable {submission.snapshot}/job.sbatch\n"


def test_no_working_directory_ends_its_line(array: JobArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused job leaves no folder."""
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "x\ntouch injected"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="has the control character"):
        submit(array.directory, array.configs, partial(render_job, array, new_job("tiny", 1, 1, False)))
    assert not array.directory.exists()


def test_without_slurm(array: JobArray, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no sbatch is installed here"):
        submit(array.directory, array.configs, partial(render_job, array, new_job("tiny", 1, 1, False)))
    assert not array.directory.exists()


def test_the_snapshot_is_what_runs(array: JobArray, tmp_path: Path) -> None:
    """Neither the installed package nor the one in the working directory runs."""
    take_snapshot(tmp_path / "now", array.configs)
    package = tmp_path / "now" / "code" / "megatape"
    script = render_job(array, new_job("tiny", 1, 1, False), tmp_path / "now")
    assert "\nexport PYTHONSAFEPATH=1\n" in script
    assert '"$snapshot/code/megatape/__main__.py" pretrain' in script
    (package / "commands" / "cli" / "main.py").write_text("def main():\n    print('of the snapshot')\n")
    ended = subprocess.run(
        [sys.executable, package / "__main__.py"], cwd=ROOT, capture_output=True, text=True, timeout=scaled(60)
    )
    assert ended.stdout == "of the snapshot\n", ended.stderr
