"""Batch script of a run, or of an array of runs.

The script (job.sh.jinja) starts one task per rank with srun, and can restart them if a rank dies. As long as the run advances,
the script requeues the job if the run was stopped early (time limit, preemption), could not save its last checkpoint, or lost a
node. `--resume auto` then continues from the newest checkpoint.
"""

import sys
from pathlib import Path

from megatape.errors import ExitStatus, UserError
from megatape.errors.text_checks import check_line, check_word
from megatape.tools.cluster.restarts import JOB_POLICY, MAX_IDLE_STARTS, REQUEUE_REASONS, RestartPolicy
from megatape.tools.cluster.slurm.batch_script import Directive, fill_script, log_prefix, quoted
from megatape.tools.cluster.slurm.job import Job
from megatape.tools.cluster.slurm.job_array import JobArray


def render_job(array: JobArray, job: Job, snapshot: Path, policy: RestartPolicy = JOB_POLICY) -> str:
    """Return the batch script of a job.

    Args:
        array: Runs of the job.
        job: Resources of the job.
        snapshot: Snapshot folder, with the code and the configurations.
        policy: Rules for restarting a run within the job.

    Raises:
        UserError: A value is not allowed in a batch script.
    """
    # Slurm replaces these by the number of the job, or of the array and its task.
    task = "%j"
    if array.is_array:
        task = "%A_%a"
    logs = f"{log_prefix(array.directory, job.name)}-{task}"
    cpus: int | str | None = job.requested_cpus
    if job.exclusive and not cpus:
        cpus = f"$((SLURM_CPUS_ON_NODE / {job.ranks_per_node}))"
    return fill_script(
        "job.sh.jinja",
        snapshot,
        _directives(array, job, logs),
        options=[check_line(option) for option in job.sbatch],
        run=array.directory.absolute(),
        is_array=array.is_array,
        logs=logs,
        python=_python_command(array, job),
        interface=job.interface,
        exclusive=job.exclusive,
        cpus=cpus,
        restarts=job.restarts,
        status=ExitStatus,
        policy=policy,
        requeue_reasons=REQUEUE_REASONS,
        max_idle_starts=MAX_IDLE_STARTS,
    )


def _directives(array: JobArray, job: Job, logs: str) -> dict[str, Directive]:
    """Return the values of the script's #SBATCH lines by their names. A line without a value is left out."""
    array_range = None
    if array.is_array:
        array_range = f"0-{len(array.configs) - 1}"
    memory = job.mem or None
    if job.exclusive and memory is None:
        # For Slurm, 0 means all memory of the node.
        memory = "0"
    return {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node,
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.requested_cpus,
        "mem": memory,
        "partition": job.partition,
        "time": job.time,
        "account": job.account,
        "array": array_range,
        "output": f"{logs}.log",
        "signal": f"USR1@{job.checkpoint_seconds}",
    }


def _python_command(array: JobArray, job: Job) -> str:
    """Return the command that runs Python: this environment's interpreter, or the one in a container image.

    Raises:
        UserError: The image name would be read as an option, or a folder cannot be mounted.
    """
    image = job.pyxis or job.apptainer
    if image is None:
        return quoted(sys.executable)
    image = quoted(check_word(image))
    mounts = quoted(",".join(f"{folder}:{folder}" for folder in _mounted_folders(array)))
    working_directory = quoted(Path.cwd())
    if job.pyxis:
        return (
            f"--container-image={image} --container-mounts={mounts} --container-workdir={working_directory} "
            "--no-container-mount-home python"
        )
    gpu_option = ""
    if job.gpus_per_node:
        gpu_option = "--nv "
    return f"apptainer exec {gpu_option}--bind {mounts} --pwd {working_directory} {image} python"


def _mounted_folders(array: JobArray) -> list[str]:
    """Return the folders to mount in a container: data, data caches, initial weights, run directories and current folder.

    Raises:
        UserError: A folder name is not allowed in a list of mounts.
    """
    folders = {Path.cwd(), array.directory.absolute()}
    for config in array.configs.values():
        for path in (*config.data.paths, config.data.cache, config.training.init_from):
            if path and "://" not in path:
                folders.add(Path(path).absolute())
    outermost = [folder for folder in folders if not any(parent in folders for parent in folder.parents)]
    for folder in outermost:
        if "," in str(folder) or ":" in str(folder):
            raise UserError(f"{folder} cannot be mounted in a container: its name has a comma or colon, so rename it")
    return sorted(map(str, outermost))
