"""Submits a pretraining run to a Slurm cluster."""

from functools import partial
from pathlib import Path
from typing import Literal

from megatape.commands.options.shared_options import ConfigOptions
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.job import Job
from megatape.utils.values.options import option

EXAMPLE = "megatape submit --config configs/tape_155m.json --nodes 4 --gpus-per-node 8 --time 24:00:00"


class Options(Job, ConfigOptions):
    """A run, and the Slurm job that trains it.

    Attributes:
        resume: resume a run whose run directory already has checkpoints
        print: check everything and print the batch script, without submitting it
        study: submit a job array with one run per line of FILE, each a list of SECTION.KEY=VALUE
            overrides
    """

    resume: Literal["auto"] | None = None
    print: bool = False
    study: Path | None = option(None, metavar="FILE")


def run(options: Options) -> None:
    """Check the job, then print its batch script or submit it."""
    from megatape.tools.cluster.slurm.job_array import plan_array
    from megatape.tools.cluster.slurm.job_check import check_array
    from megatape.tools.cluster.slurm.job_script import render_job
    from megatape.tools.cluster.slurm.submission import submit

    array = plan_array(options.config, options.set, options.study)
    check_array(array, options, resume=options.resume is not None)
    run_folder = RunFolder(array.directory)
    if options.print:
        print(render_job(array, options, run_folder.submissions / "TIME"), end="")
        return
    submission = submit(array.directory, array.configs, partial(render_job, array, options))
    print(f"job {submission.job_id}; code and configuration: {submission.snapshot}; logs: {run_folder.job_logs}")
