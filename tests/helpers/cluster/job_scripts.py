"""Running batch scripts in bash, with stand-ins for Slurm's commands."""

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from megatape.config import parse_config
from megatape.run_folder import RunFolder
from megatape.tools.cluster.restarts import JOB_POLICY, RestartPolicy
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.job_script import render_job
from tests.helpers.cluster.jobs import new_job
from tests.helpers.processes.load import scaled


class JobScript:
    """A run's batch script.

    Args:
        raw_config: Configuration of the run.
        folder: Existing run directory.
        commands: Text of a bash script for each command to replace, in addition to Slurm's. "srun" starts the run, and with
            "true" asks whether all nodes answer.
        restarts: Maximum number of restarts.
        policy: Rules for starting the run again.
    """

    def __init__(
        self,
        raw_config: dict[str, Any],
        folder: RunFolder,
        commands: Mapping[str, str],
        restarts: int = 0,
        policy: RestartPolicy = JOB_POLICY,
    ) -> None:
        programs = folder.directory.with_name("bin")
        programs.mkdir()
        slurm = {"squeue": "echo RUNNING", "scontrol": ""}
        for name, text in (slurm | dict(commands)).items():
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
        snapshot = folder.directory / "snapshot"
        snapshot.mkdir()
        raw_config["run"]["directory"] = str(folder.directory)
        array = JobArray({"config.json": parse_config(raw_config, "test")}, folder.directory, False)
        self._text = render_job(array, new_job("job", 1, 1, False, restarts=restarts), snapshot, policy)
        self._variables = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": "here",
        }

    def run(self, requeues: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run the script as Slurm does after this number of requeues."""
        variables = self._variables | {"SLURM_RESTART_COUNT": str(requeues)}
        return subprocess.run(["bash", "-c", self._text], env=variables, capture_output=True, text=True, timeout=scaled(60))
