"""Real jobs on a Slurm cluster of two nodes."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from megatape.run_folder import RunFolder
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.cluster.cluster_runs import check_losses, write_config
from tests.helpers.cluster.slurm_cluster import POLL_INTERVAL, Slurm
from tests.helpers.processes.waiting import wait_until
from tests.helpers.runs.run_folders import losses, num_recorded_steps

pytestmark = pytest.mark.numerics

STEPS = 80
LONG = {"steps": STEPS}
SETTINGS = {"zero": {"stage": 3}, "checkpoint": {"interval": 5}, "evaluation": {"interval": STEPS}}
# Each simulated node has four cores.
TWO_NODES = ("--nodes", "2", "--gpus-per-node", "1", "--cpus-per-rank", "2")


def submit(slurm: Slurm, config: Path, *options: str) -> str:
    """Submit a run with the public command. Return the job's id."""
    done = slurm.run("python", "launch/slurm/submit.py", "--config", str(config), *options)
    assert done.returncode == 0, done.stdout
    match = re.search(r"^job (\d+);", done.stdout, re.MULTILINE)
    assert match, done.stdout
    return match[1]


def wait_for_steps(slurm: Slurm, job: str, run: Path, steps: int) -> None:
    folder = RunFolder(run)
    wait_until(
        lambda: num_recorded_steps(folder) >= steps,
        f"step {steps}",
        120,
        details=lambda: explain(slurm, job, run),
        interval=POLL_INTERVAL,
    )


def wait_until_completed(slurm: Slurm, job: str, run: Path) -> None:
    wait_until(
        lambda: slurm.state(job) == "COMPLETED",
        f"job {job} completed",
        180,
        details=lambda: explain(slurm, job, run),
        interval=POLL_INTERVAL,
    )


def explain(slurm: Slurm, job: str, run: Path) -> str:
    """Return information to debug a failure."""
    logs = [f"--- {path}\n{path.read_text()[-3000:]}" for path in (run / "logs").glob("*")]
    return slurm.explain(job) + "\n".join(logs)


@pytest.fixture(scope="module")
def uninterrupted(slurm: Slurm, cluster_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Return losses of the complete run on two nodes, started by plain srun with Slurm's PMIx."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    config = write_config(folder, cluster_config, training=LONG, **SETTINGS)
    command = (
        "srun",
        "--mpi=pmix",
        "--nodes=2",
        "--ntasks-per-node=1",
        "python",
        "launch/pretrain.py",
        "--config",
        str(config),
    )
    done = slurm.run(*command)
    assert done.returncode == 0, done.stdout
    return losses(folder / "run")


def test_srun_trains_the_same_model(uninterrupted: list[float], cluster_config: dict[str, Any], one_host: list[float]) -> None:
    assert len(uninterrupted) == STEPS
    # The learning rate depends on the run's length, but not in the first step.
    assert_close(uninterrupted[:1], one_host[:1], bounds.TRAINED)


def test_preflight(slurm: Slurm, cluster_config: dict[str, Any], tmp_path: Path) -> None:
    config = write_config(tmp_path, cluster_config)
    command = ("srun", "--nodes", "2", "--ntasks-per-node", "2", "python", "launch/preflight.py", "--config", str(config))
    done = slurm.run(*command, timeout=90)
    assert done.returncode == 0, done.stdout
    assert "all checks passed" in done.stdout, done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines() if "eth0" in line] == [
        ["0", "n1"],
        ["1", "n1"],
        ["2", "n2"],
        ["3", "n2"],
    ]


def test_stopped_three_times_and_requeued(
    slurm: Slurm, cluster_config: dict[str, Any], uninterrupted: list[float], tmp_path: Path
) -> None:
    """The run continues bit for bit after three stops, and edits after submission change nothing.

    It is signaled as before a time limit, then preempted, and then all processes of a node die and the job waits for it.
    """
    config = write_config(tmp_path, cluster_config, training=LONG, **SETTINGS)
    run = tmp_path / "run"
    job = submit(slurm, config, *TWO_NODES, "--time", "10", "--name", "tiny")
    config.write_text("{}")
    wait_for_steps(slurm, job, run, 7)
    # Slurm sends this signal --checkpoint-seconds before the time limit.
    assert slurm.run("scancel", "--signal=USR1", job).returncode == 0
    batch = run / "logs" / f"tiny-{job}.log"
    main = run / "logs" / f"tiny-{job}-rank0.log"

    def wait_for_start(number: int) -> None:
        wait_until(
            lambda: main.read_text().count("resumed from") == number - 1,
            f"start {number}",
            120,
            details=lambda: explain(slurm, job, run),
        )

    wait_for_start(2)
    wait_for_steps(slurm, job, run, 12)
    urgent = slurm.run("srun", "--partition=urgent", "--nodes=2", "--ntasks-per-node=4", "true")
    assert urgent.returncode == 0, urgent.stdout
    wait_for_start(3)
    wait_for_steps(slurm, job, run, len(losses(run)) + 6)
    assert main.read_text().count("stopped on request after step") == 2
    assert batch.read_text().count("stopped before its end; requeued") == 2
    slurm.hosts.kill("n2")
    slurm.wait_for_state(job, "PENDING")
    slurm.hosts.start_sshd("n2")
    slurm.start_slurmd("n2")
    wait_until_completed(slurm, job, run)
    assert [f"start {number}, on n[1-2]" in batch.read_text() for number in (1, 2, 3, 4, 5)] == [True] * 4 + [False]
    assert losses(run) == uninterrupted
    assert (run / "logs" / f"tiny-{job}-rank1.log").exists()


def test_signalled_while_starting_then_cancelled(slurm: Slurm, cluster_config: dict[str, Any], tmp_path: Path) -> None:
    """A signal before training starts requeues the job. scancel leaves a checkpoint, and the job does not return."""
    config = write_config(tmp_path, cluster_config, training={"steps": 5000})
    run = tmp_path / "run"
    job = submit(slurm, config, "--nodes", "2", "--cpu-ranks-per-node", "1")
    wait_until(
        lambda: f"{job}.0" in slurm.run("squeue", "--steps", "--noheader").stdout,
        "the step",
        60,
        details=lambda: slurm.explain(job),
        interval=POLL_INTERVAL,
    )
    assert slurm.run("scancel", "--signal=USR1", job).returncode == 0
    batch = run / "logs" / f"megatape-{job}.log"
    wait_until(lambda: "start 2" in batch.read_text(), "the second start", 60, details=lambda: explain(slurm, job, run))
    assert not (run / "metrics.jsonl").exists()
    wait_for_steps(slurm, job, run, 3)
    assert slurm.run("scancel", job).returncode == 0
    slurm.wait_for_state(job, "CANCELLED")
    slurm.wait_until_idle()
    steps = len(losses(run))
    assert json.loads((run / "checkpoints" / f"step-{steps:08d}" / "state.json").read_text())["step"] == steps < 5000
    time.sleep(6)  # longer than a requeued job waits here
    assert slurm.state(job) == "CANCELLED"


def test_study(slurm: Slurm, cluster_config: dict[str, Any], one_host: list[float], tmp_path: Path) -> None:
    """A job array has one run per line of overrides."""
    config = write_config(tmp_path, cluster_config)
    study = tmp_path / "study"
    study.write_text("# learning rates\ntraining.seed=1234\noptimizer.learning_rate=1e-3 training.steps=2\n")
    job = submit(slurm, config, "--nodes", "1", "--cpu-ranks-per-node", "1", "--study", str(study))
    for number, steps in ((0, 3), (1, 2)):
        wait_until_completed(slurm, f"{job}_{number}", tmp_path / "run")
        assert len(losses(tmp_path / "run" / str(number))) == steps
    check_losses(tmp_path / "run" / "0", one_host)


def test_tasks_of_a_study_are_requeued_one_by_one(slurm: Slurm, cluster_config: dict[str, Any], tmp_path: Path) -> None:
    """The last task has the array's own id, by which Slurm would requeue all tasks, even complete ones."""
    config = write_config(tmp_path, cluster_config, training=LONG, **SETTINGS)
    study = tmp_path / "study"
    run = tmp_path / "run"
    study.write_text("training.steps=2\ntraining.seed=1\ntraining.seed=2\n")
    job = submit(slurm, config, "--nodes", "1", "--cpu-ranks-per-node", "1", "--study", str(study))
    wait_until_completed(slurm, f"{job}_0", run)
    for task in ("1", "2"):
        wait_for_steps(slurm, job, run / task, 7)
    assert slurm.run("scancel", "--signal=USR1", job).returncode == 0
    for number, starts in ((0, 1), (1, 2), (2, 2)):
        wait_until_completed(slurm, f"{job}_{number}", run)
        text = (run / "logs" / f"megatape-{job}_{number}.log").read_text()
        assert (text.count(", start "), text.count("requeued")) == (starts, starts - 1), text
        assert len(losses(run / str(number))) == (STEPS if number else 2)


def test_nothing_is_queued_with_a_bad_configuration(slurm: Slurm, cluster_config: dict[str, Any], tmp_path: Path) -> None:
    config = write_config(tmp_path, cluster_config)
    for options, message in (
        (("--set", "training.global_batch_size=7"), "global_batch_size 7"),
        (("--set", "data.path=nowhere"), "nowhere/index.json: not found"),
        (("--partition", "none"), "Slurm refused the job: sbatch: error: invalid partition"),
        (("--time", "00:05:00"), "--time 00:05:00 leaves no time to train"),
    ):
        done = slurm.run("python", "launch/slurm/submit.py", "--config", str(config), *TWO_NODES, *options)
        assert done.returncode == 2, done.stdout
        assert message in done.stdout, done.stdout
    assert slurm.run("squeue", "--noheader").stdout == ""
    assert not list(tmp_path.glob("run/submissions/*"))
