"""Slurm jobs: writes and submits the batch script of a run, or of an array of parts of a command.

The script (job.sh.jinja) starts one task per rank with srun. It requeues the job when the run was
stopped before its end (time limit, preemption), could not save its last checkpoint or lost a node,
while the run advances; `--resume auto` then continues from the newest checkpoint. After the death
of a rank it may start the tasks again.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from megatape import imports
from megatape.config import Config, load_config, save_config
from megatape.data.training.mixture import open_data
from megatape.errors import ExitStatus, UserError, check_line, check_word, content_errors, path_errors
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.tools.cluster.job import Job
from megatape.tools.cluster.restarts import JOB_POLICY, MAX_IDLE_STARTS, REQUEUE_REASONS, RestartPolicy
from megatape.utils.software import PACKAGE

IMPORTS = "imports"  # folder of a snapshot with the files that --import gave


@dataclass(frozen=True)
class Study:
    """The runs of a job, by file name: a configuration per task of a job array, or a single one if `is_array` is false."""

    configs: dict[str, Config]
    directory: Path
    is_array: bool


@path_errors()
def plan_study(path: str, overrides: Sequence[str], changes: Path | None) -> Study:
    """The run of the configuration `path`, or one run per line `section.key=value ...` of the file `changes`.

    Run i of several writes to run.directory/i. Raises UserError or FileNotFoundError.
    """
    base = load_config(path, overrides)
    directory = Path(base.run.directory)
    if changes is None:
        return Study({"config.json": base}, directory, False)
    with content_errors(str(changes), "write section.key=value overrides in UTF-8, with closed quotes"):
        texts = changes.read_text(encoding="utf-8").splitlines()
        lines = [shlex.split(re.sub(r"(^|\s)#.*", "", text)) for text in texts]  # to shlex, # begins a comment anywhere
    configs = {}
    for number, items in enumerate(items for items in lines if items):
        if any(item.startswith("run.directory=") for item in items):
            raise UserError(f"{changes}, run {number}: run.directory is always {directory}/{number}: remove it")
        own = f"run.directory={directory / str(number)}"
        with content_errors(f"{changes}, run {number}", "correct its line", UserError):
            configs[f"config-{number}.json"] = load_config(path, [*overrides, *items, own])
    if not configs:
        raise UserError(f"{changes}: no runs: write a line of section.key=value overrides for each run")
    return Study(configs, directory, True)


def check(study: Study, job: Job, resume: bool) -> None:
    """Raise UserError or OSError if the job would fail at its start: rank count, data, folders, time limit."""
    for config in study.configs.values():
        config.accumulation(job.nodes * job.ranks_per_node)
        open_data(config)
        folder = RunFolder(Path(config.run.directory))
        Lease(folder.lease).check_free()
        if not resume:
            folder.check_new()
    if job.time is not None and (minutes := _minutes(job.time)) and minutes * 60 <= job.checkpoint_seconds:
        raise UserError(
            f"time {job.time} leaves no time to train: the run is told to write its checkpoint {job.checkpoint_seconds} s "
            "before the time limit (`checkpoint_seconds`)"
        )


def render(study: Study, job: Job, snapshot: Path, policy: RestartPolicy = JOB_POLICY) -> str:
    """The batch script of a job whose code and configurations are in `snapshot`."""
    task = "%A_%a" if study.is_array else "%j"
    logs = f"{_logs(study.directory, job.name)}-{task}"
    directives = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node,
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.requested_cpus,
        "mem": job.mem or ("0" if job.exclusive else None),
        "partition": job.partition,
        "time": job.time,
        "account": job.account,
        "array": f"0-{len(study.configs) - 1}" if study.is_array else None,
        "output": f"{logs}.log",
        "signal": f"USR1@{job.checkpoint_seconds}",
    }
    return fill_script(
        "job.sh.jinja",
        snapshot,
        directives,
        options=[check_line(option) for option in job.sbatch],
        run=study.directory.absolute(),
        is_array=study.is_array,
        logs=logs,
        python=_inside(study, job),
        interface=job.interface,
        exclusive=job.exclusive,
        cpus=job.requested_cpus or (f"$((SLURM_CPUS_ON_NODE / {job.ranks_per_node}))" if job.exclusive else None),
        restarts=job.restarts,
        status=ExitStatus,
        policy=policy,
        requeue_reasons=REQUEUE_REASONS,
        max_idle_starts=MAX_IDLE_STARTS,
    )


def _logs(directory: Path, name: str) -> Path:
    """What the names of a job's logs begin with. Raises UserError where Slurm would write to other files."""
    logs = RunFolder(directory.absolute()).job_logs / name
    if not name or "/" in name or "%" in str(logs):
        raise UserError(f"logs would be {logs}-*, but Slurm creates no folders and replaces %: choose another `name` or folder")
    return logs


def fill_script(template: str, snapshot: Path, directives: dict[str, Any], **values: object) -> str:
    """A batch script that runs the code of a snapshot, with the modules of --import.

    Args:
        template: File name in this folder.
        snapshot: Folder of the snapshot.
        directives: Options of sbatch by name, beside those of every script; None leaves one to Slurm.
        values: More values that the template names.

    Raises:
        UserError: A value does not stay within its line.
    """
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["quoted"] = quoted
    folder = snapshot.absolute()
    modules = [folder / IMPORTS / Path(text).name if text.endswith(".py") else text for text in imports.given()]
    return environment.from_string((files("megatape.tools.cluster") / template).read_text(encoding="utf-8")).render(
        snapshot=folder,
        directives=directives | {"chdir": Path.cwd(), "open-mode": "append"},
        imported="".join(f"{imports.OPTION} {quoted(module)} " for module in modules),
        search_path="".join(f":{quoted(folder)}" for folder in imports.search_folders()),
        **values,
    )


def quoted(value: object) -> str:
    """A value as one word of a batch script. Raises UserError if it does not stay within its line."""
    return shlex.quote(check_line(str(value)))


@path_errors()
def submit(
    directory: Path, configs: dict[str, Config], render: Callable[[Path], str], options: Sequence[str] = ()
) -> tuple[str, Path]:
    """Take the snapshot, write the batch script into it, and submit it. Returns Slurm's job id and the snapshot's folder.

    If sbatch refuses the job, removes the snapshot and raises UserError with sbatch's message.

    Args:
        directory: of the run.
        configs: by file name.
        render: makes the batch script, given the snapshot.
        options: of sbatch, which override the script's.
    """
    if shutil.which("sbatch") is None:
        raise UserError("no sbatch is installed here: run this on a login node of the Slurm cluster")
    run = RunFolder(directory.absolute())  # sbatch would read a relative path starting with - as an option
    folder = run.submissions / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    text = render(folder)
    take_snapshot(folder, configs)
    run.job_logs.mkdir(exist_ok=True)
    script = folder / "job.sbatch"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(["sbatch", "--parsable", *options, str(script)], capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder)
        raise UserError(f"Slurm refused the job: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0], folder


def _inside(study: Study, job: Job) -> str:
    """Return the command that runs Python: this environment's interpreter, or an image's with the run's folders mounted.

    Raises:
        UserError: The name of the image or of a folder would be read as an option.
    """
    image = job.pyxis or job.apptainer
    if image is None:
        return quoted(sys.executable)
    image = check_word(image)
    given = {path for c in study.configs.values() for path in (*c.data.paths, c.data.cache, c.training.init_from) if path}
    folders = {Path.cwd(), study.directory.absolute(), *(Path(path).absolute() for path in given if "://" not in path)}
    mounts = sorted(str(folder) for folder in folders if not any(parent in folders for parent in folder.parents))
    for mount in mounts:
        if "," in mount or ":" in mount:
            raise UserError(f"{mount} cannot be mounted in a container: its name has a comma or colon, so rename it")
    workdir = quoted(Path.cwd())
    bound = quoted(",".join(f"{folder}:{folder}" for folder in mounts))
    if job.pyxis:
        options = f"--container-image={quoted(image)} --container-mounts={bound} --container-workdir={workdir}"
        return f"{options} --no-container-mount-home python"
    return f"apptainer exec {'--nv ' if job.gpus_per_node else ''}--bind {bound} --pwd {workdir} {quoted(image)} python"


def _minutes(time: str) -> float | None:
    """Minutes of a Slurm time limit such as 90, 90:30, 1:30:00 or 1-12:00:00; None for other formats, left to Slurm."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if match is None:
        return None
    days, *parts = match.groups()
    first, second, third = (int(part or 0) for part in parts)
    if days is None and parts[2] is None:  # minutes, or minutes:seconds
        return first + second / 60
    return int(days or 0) * 1440 + first * 60 + second + third / 60


STOP_SECONDS = 120  # before the time limit, to write checkpoints


def submit_array(words: list[str], count: int, out: Path, sbatch: str) -> str:
    """Submit `megatape WORDS --cell NUMBER` for the numbers 0 .. count - 1, with the code as it is now; returns Slurm's job id.

    out: folder of the script and the logs. sbatch: options, such as "--partition gpu --time 60". Raises UserError as
    `submit` does.
    """
    return submit(out, {}, partial(render_array, words, count, out), shlex.split(sbatch))[0]


def render_array(words: list[str], count: int, out: Path, snapshot: Path) -> str:
    """The batch script, whose code is in `snapshot`."""
    directives = {
        "job-name": "suite",
        "array": f"0-{count - 1}",
        "output": f"{_logs(out, 'suite')}-%A_%a.log",
        "signal": f"B:TERM@{STOP_SECONDS}",
    }
    code = snapshot.absolute() / "code"
    command = [sys.executable, code / "megatape" / "__main__.py", *words]
    return fill_script("array.sh.jinja", snapshot, directives, code=code, command=command)


def take_snapshot(folder: Path, configs: dict[str, Config]) -> None:
    """Write code/, imports/ (files that --import gave) and the resolved configurations (by file name) into a new folder.

    Raises:
        OSError: Something cannot be read or written.
    """
    folder.mkdir(parents=True)
    shutil.copytree(PACKAGE, folder / "code" / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in imports.files():
        (folder / IMPORTS).mkdir(exist_ok=True)
        shutil.copy(file, folder / IMPORTS)
    for name, config in configs.items():
        save_config(config, folder / name, with_secrets=True)
