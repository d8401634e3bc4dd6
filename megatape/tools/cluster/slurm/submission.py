"""Submits a batch script with a snapshot of the code."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from megatape import imports
from megatape.config import Config, save_config
from megatape.errors import UserError, path_errors
from megatape.run_folder import RunFolder
from megatape.tools.cluster.slurm.batch_script import IMPORTS
from megatape.utils.files.project_files import PACKAGE


@dataclass(frozen=True)
class Submission:
    """Submitted job.

    Attributes:
        job_id: Slurm's job id.
        snapshot: Snapshot folder, with batch script, code and configurations.
    """

    job_id: str
    snapshot: Path


@path_errors()
def submit(
    directory: Path, configs: dict[str, Config], render: Callable[[Path], str], options: Sequence[str] = ()
) -> Submission:
    """Take a snapshot, write the batch script into it, and submit the script. If sbatch rejects it, remove the snapshot.

    Args:
        directory: Run directory.
        configs: Configurations by file name.
        render: Function of the snapshot folder that returns the batch script.
        options: Options of sbatch, which override those in the script.

    Raises:
        UserError: sbatch is missing, or it rejects the job. The message contains sbatch's reason.
    """
    if shutil.which("sbatch") is None:
        raise UserError("no sbatch is installed here: run this on a login node of the Slurm cluster")
    # Make the path absolute, because sbatch would read a relative path starting with - as an option.
    run = RunFolder(directory.absolute())
    snapshot = run.submissions / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    text = render(snapshot)
    take_snapshot(snapshot, configs)
    run.job_logs.mkdir(exist_ok=True)
    script = snapshot / "job.sbatch"
    script.write_text(text, encoding="utf-8")
    sbatch = subprocess.run(["sbatch", "--parsable", *options, str(script)], capture_output=True, text=True)
    if sbatch.returncode:
        shutil.rmtree(snapshot)
        raise UserError(f"Slurm refused the job: {sbatch.stderr.strip()}")
    job_id, _, _ = sbatch.stdout.strip().partition(";")
    return Submission(job_id, snapshot)


def take_snapshot(folder: Path, configs: dict[str, Config]) -> None:
    """Write code/, imports/ (files given with --import) and the resolved configurations into a new folder.

    Args:
        folder: Snapshot folder.
        configs: Configurations by file name.

    Raises:
        OSError: A file cannot be read or written.
    """
    folder.mkdir(parents=True)
    shutil.copytree(PACKAGE, folder / "code" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in imports.files():
        (folder / IMPORTS).mkdir(exist_ok=True)
        shutil.copy(file, folder / IMPORTS)
    for name, config in configs.items():
        save_config(config, folder / name, with_secrets=True)
