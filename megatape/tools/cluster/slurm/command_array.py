"""Job arrays that distribute one command, such as `megatape study suite`, over tasks."""

import shlex
import sys
from functools import partial
from pathlib import Path

from megatape.tools.cluster.slurm.batch_script import Directive, fill_script, log_prefix
from megatape.tools.cluster.slurm.submission import submit

# Slurm sends SIGTERM this many seconds before the time limit, so that checkpoints can be written.
STOP_SECONDS = 120


def submit_array(name: str, words: list[str], count: int, out: Path, sbatch: str) -> str:
    """Submit `megatape WORDS --cell NUMBER` for all numbers from 0 to `count` - 1, with a snapshot of the current code.

    Args:
        name: Name of the job, which begins the names of its logs.
        words: Words of the command.
        count: Number of tasks.
        out: Folder for the script and the logs.
        sbatch: Options of sbatch, such as "--partition gpu --time 60".

    Returns:
        Slurm's job id.

    Raises:
        UserError: See `submit`.
    """
    submission = submit(out, {}, partial(render_array, name, words, count, out), shlex.split(sbatch))
    return submission.job_id


def render_array(name: str, words: list[str], count: int, out: Path, snapshot: Path) -> str:
    """Return the batch script for `submit_array`.

    Args:
        name: Name of the job, which begins the names of its logs.
        words: Words of the command.
        count: Number of tasks.
        out: Folder for the logs.
        snapshot: Snapshot folder, with the code.
    """
    directives: dict[str, Directive] = {
        "job-name": name,
        "array": f"0-{count - 1}",
        "output": f"{log_prefix(out, name)}-%A_%a.log",
        "signal": f"B:TERM@{STOP_SECONDS}",
    }
    code = snapshot.absolute() / "code"
    command = [sys.executable, code / "megatape" / "__main__.py", *words]
    return fill_script("array.sh.jinja", snapshot, directives, code=code, command=command)
