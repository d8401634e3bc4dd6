"""Ranks from the variables of each launcher, as recorded from real ones, and errors for contradictions."""

import os

import pytest

from megatape.distributed.launch.launcher_logs import quiet_launcher
from megatape.distributed.launch.launchers import set_up_ranks
from megatape.distributed.topology import Topology

RANK_VARS = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SRUN = {
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_JOB_ID": "70",
    "SLURM_STEP_ID": "3",
}
MASTER_VARS = {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}
LAUNCHED = {
    "by hand": RANK_VARS | {"LOCAL_WORLD_SIZE": "4"},
    "torchrun": RANK_VARS | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4"},
    "deepspeed": RANK_VARS | {"CROSS_RANK": "1", "CROSS_SIZE": "2", "LOCAL_SIZE": "4"},
    "mpirun": OPEN_MPI | MASTER_VARS,
    "hydra": HYDRA | MASTER_VARS,
    "srun": SRUN,
    "srun --mpi=pmi2": SRUN | {"PMI_RANK": "5", "PMI_SIZE": "8"},
    "srun --mpi=pmix": SRUN | {"PMIX_RANK": "5"},
    # The inner launcher started this process; the outer one's numbers describe the inner launcher.
    "torchrun under srun": SRUN
    | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    | RANK_VARS
    | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4"},
    "mpirun under srun": SRUN | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"} | OPEN_MPI | MASTER_VARS,
    "hydra under srun": SRUN | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"} | HYDRA | MASTER_VARS,
    "ranks mapped by hand under srun": SRUN | RANK_VARS,
}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove launcher variables. Variables set by set_up_ranks() are undone after the test."""
    for name in {name for environment in LAUNCHED.values() for name in environment} | {"PMIX_SIZE", "PALS_SIZE"}:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def launched(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_alone() -> None:
    assert set_up_ranks() == Topology(0, 1, 0)


@pytest.mark.parametrize("launcher", LAUNCHED)
def test_every_launcher_leads_to_the_same(monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    launched(monkeypatch, LAUNCHED[launcher])
    topology = set_up_ranks()
    assert topology == Topology(5, 8, 1, local_size=4)
    # Variables read by torch and DeepSpeed
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")] == ["5", "8", "1"]
    expected = (
        ("n1", str(20000 + 31 * 70 + 3)) if launcher in ("srun", "srun --mpi=pmi2", "srun --mpi=pmix") else ("host", "29500")
    )
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == expected
    # A second call returns the same ranks.
    assert set_up_ranks() == topology


@pytest.mark.parametrize(
    ("tasks", "node", "local_size"),
    [("4(x2)", 1, 4), ("3,2(x3),1", 0, 3), ("3,2(x3),1", 3, 2), ("3,2(x3),1", 4, 1), ("8", 0, 8)],
)
def test_tasks_of_a_slurm_node(monkeypatch: pytest.MonkeyPatch, tasks: str, node: int, local_size: int) -> None:
    launched(monkeypatch, SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"})
    assert set_up_ranks().local_size == local_size


FAULTS = {
    "half": ({"RANK": "0"}, "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT are not set"),
    "no number": (RANK_VARS | {"RANK": "one"}, "RANK is 'one'"),
    "rank too large": (RANK_VARS | {"RANK": "8"}, "RANK is 8 and WORLD_SIZE is 8"),
    "local rank too large": (
        RANK_VARS | {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "1"},
        "LOCAL_RANK is 1 and LOCAL_WORLD_SIZE is 1",
    ),
    "more local ranks than ranks": (
        OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "9"},
        "OMPI_COMM_WORLD_LOCAL_SIZE is 9, more than",
    ),
    "incomplete": (
        {"CROSS_RANK": "0", "RANK": "0"},
        "deepspeed started this process, but WORLD_SIZE, LOCAL_RANK, LOCAL_SIZE, MASTER",
    ),
    "srun without tasks per node": (
        {name: value for name, value in SRUN.items() if name != "SLURM_STEP_TASKS_PER_NODE"},
        "SLURM_STEP_TASKS_PER_NODE is not set",
    ),
    "left rank": (SRUN | {"RANK": "0"}, "RANK is 0, but SLURM_PROCID, set by srun, says 5"),
    "left world": (OPEN_MPI | {"WORLD_SIZE": "1"}, "WORLD_SIZE is 1, but OMPI_COMM_WORLD_SIZE"),
    "bad node list": (SRUN | {"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST is ''"),
    "bad tasks": (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "four"}, "SLURM_STEP_TASKS_PER_NODE is 'four'"),
    "rank 0 elsewhere": (SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, "SLURM_PROCID 0 is on node 1"),
    # Otherwise every process would act as the whole run, and all would write to one folder.
    "unknown": ({"PMIX_SIZE": "2"}, "PMIX_SIZE is 2, from an unknown launcher"),
    "unknown PMI": ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "PMI_SIZE is 2, from an unknown launcher"),
    "another MPI": (
        OPEN_MPI,
        "mpi4py",
    ),  # mpirun did not start this process, so mpi4py says 0 of 1, or finds no library
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_variable(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    environment, message = FAULTS[fault]
    launched(monkeypatch, environment)
    before = dict(os.environ)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        set_up_ranks()
    assert dict(os.environ) == before, "a failed check leaves the environment as it was"


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("deepspeed --num_gpus 2 launch/pretrain.py", "deepspeed --quiet --num_gpus 2 launch/pretrain.py"),
        ("/x/bin/ds launch/pretrain.py", "/x/bin/ds --quiet launch/pretrain.py"),
        ("deepspeed --log_level=info launch/pretrain.py", "deepspeed --log_level=info launch/pretrain.py"),
        ("deepspeed launch/pretrain.py --verbose", "deepspeed launch/pretrain.py --verbose"),
        ("python launch/pretrain.py", "python launch/pretrain.py"),
    ],
)
def test_log_of_a_launcher(command: str, started: str) -> None:
    assert quiet_launcher(command.split()) == started.split()
