"""Text of a run's batch script, without a cluster. tests/tools/cluster/slurm/test_slurm.py runs it."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megatape.errors import UserError
from megatape.tools.cluster.slurm.job import Job
from megatape.tools.cluster.slurm.job_array import JobArray
from megatape.tools.cluster.slurm.job_script import render_job
from tests.helpers.cluster.jobs import new_job
from tests.helpers.processes.command import Command

SNAPSHOT = Path("/shared/run/submissions/now")


COMMAND = "x\ntouch injected"


def test_text(array: JobArray) -> None:
    job = new_job(
        "tiny",
        4,
        8,
        True,
        partition="gpu",
        time="24:00:00",
        account="physics",
        cpus_per_rank=12,
        checkpoint_seconds=600,
        interface="ib0",
        sbatch=("--mem=0", "--exclusive"),
    )
    text = render_job(array, job, SNAPSHOT)
    for line in (
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --cpus-per-task=12",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=24:00:00",
        "#SBATCH --account=physics",
        "#SBATCH --signal=USR1@600",
        "#SBATCH --requeue",
        "#SBATCH --mem=0",
        "#SBATCH --exclusive",
        f"#SBATCH --output={array.directory}/logs/tiny-%j.log",
        "snapshot=/shared/run/submissions/now",
        "export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME==ib0",
    ):
        assert line in text.splitlines()
    assert f"--output={array.directory}/logs/tiny-%j-rank%t.log" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("job", "asked", "cpus"),
    [
        (new_job("tiny", 1, 4, True), {"cpus-per-task=8"}, "8"),
        (new_job("tiny", 1, 4, True, cpus_per_rank=12, mem="400G"), {"cpus-per-task=12", "mem=400G"}, "12"),
        (new_job("tiny", 1, 4, True, exclusive=True), {"exclusive", "mem=0"}, "$((SLURM_CPUS_ON_NODE / 4))"),
        (
            new_job("tiny", 1, 4, True, cpus_per_rank=2, mem="9G", exclusive=True),
            {"exclusive", "mem=9G", "cpus-per-task=2"},
            "2",
        ),
        (new_job("tiny", 1, 4, False), set(), None),
        (new_job("tiny", 1, 4, False, exclusive=True), {"exclusive", "mem=0"}, "$((SLURM_CPUS_ON_NODE / 4))"),
    ],
)
def test_cores_and_memory(array: JobArray, job: Job, asked: set[str], cpus: str | None) -> None:
    """A rank with a GPU gets more than Slurm's default of one core, and ranks of a whole node share all of it."""
    text = render_job(array, job, SNAPSHOT)
    options = {line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {option for option in options if option.startswith(("cpus", "mem", "exclusive"))} == asked
    exported = f"export SRUN_CPUS_PER_TASK={cpus} OMP_NUM_THREADS={cpus} MEGATAPE_THREADS={cpus}"
    assert (exported in text.splitlines()) if cpus else ("SRUN_CPUS_PER_TASK" not in text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_no_gpus_asked_for_on_cpu_nodes(array: JobArray) -> None:
    text = render_job(array, new_job("tiny", 1, 4, False), SNAPSHOT)
    assert "--gpus" not in text
    assert "#SBATCH --ntasks-per-node=4" in text


def test_containers_see_the_runs_folders(array: JobArray, tmp_path: Path) -> None:
    """Containers mount the folders of the data and its copies, of the starting weights, and of the run."""
    config = array.configs["config.json"]
    run = array.directory
    places = {"data.cache": str(tmp_path / "cache"), "training.init_from": str(tmp_path / "weights")}
    data = config.data.path
    cache = places["data.cache"]
    weights = places["training.init_from"]
    config = config.model_copy(
        update={
            "data": config.data.model_copy(update={"cache": cache}),
            "training": config.training.model_copy(update={"init_from": weights}),
        }
    )
    array = replace(array, configs={"config.json": config})
    job = new_job("tiny", 1, 4, True, pyxis="registry#megatape:1")
    text = render_job(array, job, SNAPSHOT)
    mounts = ",".join(f"{folder}:{folder}" for folder in sorted((str(Path.cwd()), data, str(run), cache, weights)))
    assert f"--container-image='registry#megatape:1' --container-mounts={mounts} --container-workdir={Path.cwd()}" in text
    job = new_job("tiny", 1, 4, True, apptainer="megatape.sif")
    assert f"apptainer exec --nv --bind {mounts} --pwd {Path.cwd()} megatape.sif python \\" in render_job(array, job, SNAPSHOT)
    job = new_job("tiny", 1, 4, False, apptainer="megatape.sif")
    assert "apptainer exec --bind" in render_job(array, job, SNAPSHOT)


@pytest.mark.parametrize(
    "values",
    [
        {"name": COMMAND},
        {"partition": COMMAND},
        {"time": COMMAND},
        {"account": COMMAND},
        {"interface": COMMAND},
        {"mem": COMMAND},
        {"sbatch": (f"--mem={COMMAND}",)},
        {"pyxis": COMMAND},
        {"apptainer": COMMAND},
    ],
    ids=str,
)
def test_no_value_of_a_job_ends_its_line(array: JobArray, values: dict[str, Any]) -> None:
    job = new_job("tiny", 1, 1, False).model_copy(update=values)
    with pytest.raises(UserError, match="has the control character"):
        render_job(array, job, SNAPSHOT)


def test_no_folder_ends_its_line(array: JobArray) -> None:
    hostile = Path(COMMAND)
    for directory, snapshot in ((hostile, SNAPSHOT), (array.directory, hostile)):
        with pytest.raises(UserError, match="has the control character"):
            render_job(JobArray(array.configs, directory, False), new_job("tiny", 1, 1, False), snapshot)


@pytest.mark.parametrize(("name", "folder"), [("", "run"), ("a/b", "run"), ("a%j", "run"), ("a", "100%j")])
def test_invalid_log_names(array: JobArray, tmp_path: Path, name: str, folder: str) -> None:
    with pytest.raises(UserError, match="logs would be .*: choose another `name` or folder"):
        render_job(JobArray(array.configs, tmp_path / folder, False), new_job(name, 1, 1, False), SNAPSHOT)


def test_no_value_becomes_an_option_or_a_mount(array: JobArray) -> None:
    """An image cannot become an option of apptainer, nor a folder a second mount."""
    for image in ({"apptainer": "--writable"}, {"pyxis": "-x"}):
        with pytest.raises(UserError, match="begins with -, so programs would take it for an option"):
            render_job(array, new_job("tiny", 1, 1, False, **image), SNAPSHOT)
    job = new_job("tiny", 1, 1, False, apptainer="image.sif")
    for name in ("a,b", "a:b"):
        elsewhere = JobArray(array.configs, Path("/elsewhere", name), False)
        with pytest.raises(UserError, match="cannot be mounted in a container: its name has a comma or colon, so rename it"):
            render_job(elsewhere, job, SNAPSHOT)


def test_print_only(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    words = ("submit", "--config", config, "--nodes", 2, "--gpus-per-node", 1)
    status, printed, errors = command(*words, "--print")
    assert (status, errors) == (0, "")
    assert printed.startswith("#!/bin/bash\n#SBATCH --job-name=megatape")
    assert not Path(raw_config["run"]["directory"]).exists()
    printed = command(*words, "--print", "--exclusive", "--mem", "400G")[1]
    assert "#SBATCH --exclusive\n" in printed
    assert "#SBATCH --mem=400G\n" in printed
    status, _, errors = command(*words, "--print", "--time", "5")
    assert status == 2
    assert errors.startswith("error: --time 5 leaves no time")
