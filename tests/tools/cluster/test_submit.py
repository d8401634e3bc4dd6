"""The text of the batch scripts of runs and of arrays, without a cluster. tests/tools/cluster/test_slurm.py runs it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from megatape.config import parse_config
from megatape.errors import UserError
from megatape.registry import ENCODINGS, SYNTHETIC_TASKS
from megatape.reliability.lease import Lease
from megatape.run_folder import RunFolder
from megatape.tools.cluster.job import Job
from megatape.tools.cluster.slurm import Study, check, plan_study, render, render_array, submit, take_snapshot
from tests.helpers.command import Command
from tests.helpers.jobs import new_job
from tests.helpers.workers import ROOT

SNAPSHOT = Path("/shared/run/submissions/now")


@pytest.fixture
def study(raw_config: dict[str, Any]) -> Study:
    config = parse_config(raw_config, "test")
    return Study({"config.json": config}, Path(config.run.directory), False)


def test_text(study: Study) -> None:
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
    text = render(study, job, SNAPSHOT)
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
        f"#SBATCH --output={study.directory}/logs/tiny-%j.log",
        "snapshot=/shared/run/submissions/now",
        "export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME==ib0",
    ):
        assert line in text.splitlines()
    assert f"--output={study.directory}/logs/tiny-%j-rank%t.log" in text
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
def test_cores_and_memory(study: Study, job: Job, asked: set[str], cpus: str | None) -> None:
    """A rank with a GPU has more than the one core of Slurm's default, and the ranks of a whole node share all of it."""
    text = render(study, job, SNAPSHOT)
    options = {line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {option for option in options if option.startswith(("cpus", "mem", "exclusive"))} == asked
    exported = f"export SRUN_CPUS_PER_TASK={cpus} OMP_NUM_THREADS={cpus} MEGATAPE_THREADS={cpus}"
    assert (exported in text.splitlines()) if cpus else ("SRUN_CPUS_PER_TASK" not in text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_no_gpus_asked_for_on_cpu_nodes(study: Study) -> None:
    text = render(study, new_job("tiny", 1, 4, False), SNAPSHOT)
    assert "--gpus" not in text and "#SBATCH --ntasks-per-node=4" in text


def test_containers_see_the_runs_folders(study: Study, tmp_path: Path) -> None:
    """Those of its data, their copies, the weights that it begins with, and its own."""
    config, run = study.configs["config.json"], study.directory
    places = {"data.cache": str(tmp_path / "cache"), "training.init_from": str(tmp_path / "weights")}
    data, cache, weights = config.data.path, places["data.cache"], places["training.init_from"]
    config = config.model_copy(
        update={
            "data": config.data.model_copy(update={"cache": cache}),
            "training": config.training.model_copy(update={"init_from": weights}),
        }
    )
    study = replace(study, configs={"config.json": config})
    job = new_job("tiny", 1, 4, True, pyxis="registry#megatape:1")
    text = render(study, job, SNAPSHOT)
    mounts = ",".join(f"{folder}:{folder}" for folder in sorted((str(Path.cwd()), data, str(run), cache, weights)))
    assert f"--container-image='registry#megatape:1' --container-mounts={mounts} --container-workdir={Path.cwd()}" in text
    job = new_job("tiny", 1, 4, True, apptainer="megatape.sif")
    assert f"apptainer exec --nv --bind {mounts} --pwd {Path.cwd()} megatape.sif python \\" in render(study, job, SNAPSHOT)
    job = new_job("tiny", 1, 4, False, apptainer="megatape.sif")
    assert "apptainer exec --bind" in render(study, job, SNAPSHOT)


def test_study(raw_config: dict[str, Any], tmp_path: Path) -> None:
    config, lines = tmp_path / "config.json", tmp_path / "study"
    config.write_text(json.dumps(raw_config))
    lines.write_text("training.seed=1\n\n# the second\ntraining.seed=2 model.encoding=rope\n")
    study = plan_study(str(config), ["training.steps=9"], lines)
    run = raw_config["run"]["directory"]
    assert [config.run.directory for config in study.configs.values()] == [f"{run}/0", f"{run}/1"]
    assert [(c.training.seed, c.training.steps, c.model.encoding) for c in study.configs.values()] == [
        (1, 9, "tape"),
        (2, 9, "rope"),
    ]
    text = render(study, new_job("tiny", 1, 4, True), SNAPSHOT)
    assert "#SBATCH --array=0-1" in text and '"$snapshot/config-$SLURM_ARRAY_TASK_ID.json"' in text
    assert "tiny-%A_%a-rank%t.log" in text
    for text, message in (
        ("", "no runs"),
        ("run.directory=x", "run 0: run.directory is always"),
        ("training.seed=1\ntraining.step=1", "study, run 1 .*unknown key.*: correct its line"),
        ("training.seed='1", r"study \(No closing quotation\): write section.key=value overrides"),
        ("\xff", r"study \(.*can't decode byte 0xff.*: write section.key=value overrides in UTF-8"),
    ):
        lines.write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=f"(?s){message}"):
            plan_study(str(config), [], lines)
    lines.write_text("  # don't\ndata.cache=/x#7 training.seed=3 # the third\n")
    assert [(c.data.cache, c.training.seed) for c in plan_study(str(config), [], lines).configs.values()] == [("/x#7", 3)]


@pytest.mark.parametrize(
    ("time", "enough"),
    [
        ("5", False),
        ("6", True),
        ("4:59", False),
        ("00:05:00", False),
        ("1:00:00", True),
        ("1-0", True),
        ("0", True),
        ("INFINITE", True),
    ],
)
def test_time_to_write_a_checkpoint(study: Study, time: str, enough: bool) -> None:
    """To Slurm, 0 is no limit."""
    job = new_job("tiny", 1, 1, False, time=time, checkpoint_seconds=300)
    if enough:
        check(study, job, resume=False)
    else:
        with pytest.raises(ValueError, match=f"time {time} leaves no time"):
            check(study, job, resume=False)


def test_checkpoints_in_the_folder(study: Study) -> None:
    (study.directory / "checkpoints" / "step-00000004").mkdir(parents=True)
    with pytest.raises(ValueError, match="already holds checkpoints: add --resume auto"):
        check(study, new_job("tiny", 1, 1, False), resume=False)
    check(study, new_job("tiny", 1, 1, False), resume=True)


def test_a_run_in_the_folder(study: Study) -> None:
    lease = Lease(RunFolder(study.directory).lease)
    assert lease.attempt()
    with pytest.raises(ValueError, match="is in use by a run"):
        check(study, new_job("tiny", 1, 2, False), resume=True)
    lease.release()
    check(study, new_job("tiny", 1, 2, False), resume=True)


COMMAND = "x\ntouch injected"


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
def test_no_value_of_a_job_ends_its_line(study: Study, values: dict[str, Any]) -> None:
    job = new_job("tiny", 1, 1, False).model_copy(update=values)
    with pytest.raises(UserError, match="has the control character"):
        render(study, job, SNAPSHOT)


@pytest.mark.parametrize(("name", "folder"), [("", "run"), ("a/b", "run"), ("a%j", "run"), ("a", "100%j")])
def test_logs_lie_where_they_are_looked_for(study: Study, tmp_path: Path, name: str, folder: str) -> None:
    with pytest.raises(UserError, match="logs would be .*: choose another `name` or folder"):
        render(Study(study.configs, tmp_path / folder, False), new_job(name, 1, 1, False), SNAPSHOT)


def test_no_value_becomes_an_option(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch gets an absolute path. An image cannot become an option of apptainer, nor a folder a second mount."""
    (tmp_path / "sbatch").write_text(SBATCH.format(folder=tmp_path))
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    directory = Path("--wrap=touch PWNED #")
    directory.mkdir()
    number, folder = submit(directory, study.configs, partial(render, study, new_job("tiny", 1, 1, False)))
    assert (number, folder.is_absolute()) == ("7", True)
    assert (tmp_path / "asked").read_text() == f"--parsable {folder}/job.sbatch\n"
    for image in ({"apptainer": "--writable"}, {"pyxis": "-x"}):
        with pytest.raises(UserError, match="begins with -, so programs would take it for an option"):
            render(study, new_job("tiny", 1, 1, False, **image), SNAPSHOT)
    job = new_job("tiny", 1, 1, False, apptainer="image.sif")
    for name in ("a,b", "a:b"):
        elsewhere = Study(study.configs, Path("/elsewhere", name), False)
        with pytest.raises(UserError, match="cannot be mounted in a container: its name has a comma or colon, so rename it"):
            render(elsewhere, job, SNAPSHOT)


def test_no_folder_ends_its_line(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an argument of an array job. A job that is refused leaves no folder."""
    job, hostile = new_job("tiny", 1, 1, False), Path(COMMAND)
    with pytest.raises(UserError, match="has the control character"):
        render_array(["study", "suite", "--launcher", COMMAND], 2, tmp_path, SNAPSHOT)
    for out, snapshot in ((hostile, SNAPSHOT), (tmp_path, hostile)):
        with pytest.raises(UserError, match="has the control character"):
            render_array(["study", "suite"], 2, out, snapshot)
    for directory, snapshot in ((hostile, SNAPSHOT), (study.directory, hostile)):
        with pytest.raises(UserError, match="has the control character"):
            render(Study(study.configs, directory, False), job, snapshot)
    (tmp_path / "sbatch").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / COMMAND).mkdir()
    monkeypatch.chdir(tmp_path / COMMAND)
    with pytest.raises(UserError, match="has the control character"):
        submit(study.directory, study.configs, partial(render, study, job))
    assert not study.directory.exists()


def test_without_slurm(study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no sbatch is installed here"):
        submit(study.directory, study.configs, partial(render, study, new_job("tiny", 1, 1, False)))
    assert not study.directory.exists()


def test_print_only(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    words = ("submit", "--config", config, "--nodes", 2, "--gpus-per-node", 1)
    status, printed, errors = command(*words, "--print")
    assert (status, errors) == (0, "")
    assert printed.startswith("#!/bin/bash\n#SBATCH --job-name=megatape")
    assert not Path(raw_config["run"]["directory"]).exists()
    printed = command(*words, "--print", "--exclusive", "--mem", "400G")[1]
    assert "#SBATCH --exclusive\n" in printed and "#SBATCH --mem=400G\n" in printed
    status, _, errors = command(*words, "--print", "--time", "5")
    assert status == 2 and errors.startswith("error: --time 5 leaves no time")


def test_the_snapshot_is_what_runs(study: Study, tmp_path: Path) -> None:
    """Neither the installed package nor the one in the working directory runs."""
    take_snapshot(tmp_path / "now", study.configs)
    package = tmp_path / "now" / "code" / "megatape"
    script = render(study, new_job("tiny", 1, 1, False), tmp_path / "now")
    assert "\nexport PYTHONSAFEPATH=1\n" in script and '"$snapshot/code/megatape/__main__.py" pretrain' in script
    (package / "commands" / "main.py").write_text("def main():\n    print('of the snapshot')\n")
    ended = subprocess.run([sys.executable, package / "__main__.py"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "of the snapshot\n", ended.stderr


# An sbatch that keeps its arguments, and a Python that keeps those of task 3 and the place of its code.
SBATCH = """#!/bin/sh
echo "$@" > {folder}/asked
echo "7;cluster"
"""
PYTHON = """#!/bin/sh
echo "$PYTHONSAFEPATH $PYTHONPATH" "$@" > {folder}/started
"""


def test_suite(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("sbatch", SBATCH), ("python", PYTHON)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(folder=tmp_path))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    out = tmp_path / "a suite"
    status, printed, errors = command("study", "suite", "--seeds", 2, "--rates", "1e-3", "--out", out, "--slurm", "--time 60")
    assert (status, errors) == (0, "") and printed.startswith(f"job 7, {len(SYNTHETIC_TASKS) * len(ENCODINGS)} tasks; logs: ")
    (script,) = out.glob("submissions/*/job.sbatch")
    assert (tmp_path / "asked").read_text() == f"--parsable --time 60 {script}\n"
    text = script.read_text()
    assert (
        f"#SBATCH --array=0-{len(SYNTHETIC_TASKS) * len(ENCODINGS) - 1}\n" in text and "#SBATCH --signal=B:TERM@120\n" in text
    )

    subprocess.run(["bash", script], env=os.environ | {"SLURM_ARRAY_TASK_ID": "3"}, check=True)
    started, code = (tmp_path / "started").read_text(), script.parent / "code"
    assert started == (
        f"1 {code} {code}/megatape/__main__.py study suite --seeds 2 --size tiny --out {out} --rates 0.001 --cell 3\n"
    )
    # A plan file and an array job select the runs in different ways.
    assert "not allowed with" in command("study", "suite", "--out", out, "--slurm", "", "--plan", "plan.json")[2]
