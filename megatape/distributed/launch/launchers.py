"""Known launchers, and reading this process's ranks from the environment variables that they set."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megatape.distributed.launch.environment import read_int
from megatape.distributed.launch.mpi import mpi_rendezvous
from megatape.distributed.launch.network import free_port, is_loopback
from megatape.distributed.launch.slurm import num_node_tasks, slurm_rendezvous
from megatape.distributed.topology import Topology
from megatape.errors import UserError

# Variables read by torch and DeepSpeed. The second ones are the address of rank 0's host, where ranks meet.
RANK_VARS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
MASTER_VARS = ("MASTER_ADDR", "MASTER_PORT")
# Names of the `deepspeed` command in a command line.
DEEPSPEED_COMMANDS = ("deepspeed", "deepspeed.pt", "ds", "deepspeed.launcher.runner")
# Number of processes, as set by launchers missing in LAUNCHERS.
OTHER_WORLD_SIZE_VARS = ("PMI_SIZE", "PMIX_SIZE", "PALS_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE")


class RankVariables(NamedTuple):
    """Names of the environment variables with a process's ranks (see Topology)."""

    rank: str
    world_size: str
    local_rank: str
    local_size: str


def _mpi_rendezvous(launcher: "Launcher", topology: Topology) -> tuple[str, int]:
    variables = launcher.variables
    return mpi_rendezvous(topology, launcher.name, (variables.rank, variables.world_size))


def _slurm_rendezvous(launcher: "Launcher", topology: Topology) -> tuple[str, int]:
    return slurm_rendezvous(topology)


@dataclass(frozen=True)
class Launcher:
    """A launcher and its environment variables.

    Attributes:
        name: Name in messages.
        marker: Variable that only this launcher sets.
        variables: Names of the variables that it sets.
        find_rendezvous: Returns the address and port at which the ranks meet, if it sets neither. May be collective.
        read_local_size: Returns the number of ranks on this host, or None to read it from its variable.
    """

    name: str
    marker: str
    variables: RankVariables
    find_rendezvous: Callable[["Launcher", Topology], tuple[str, int]] = _mpi_rendezvous
    read_local_size: Callable[[], int] | None = None


# Launchers can be nested, as in `srun torchrun`. The inner one, which started the process, must come first here.
LAUNCHERS = (
    Launcher("torchrun", "TORCHELASTIC_RUN_ID", RankVariables(*RANK_VARS, "LOCAL_WORLD_SIZE")),
    Launcher("deepspeed", "CROSS_RANK", RankVariables(*RANK_VARS, "LOCAL_SIZE")),
    Launcher(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        RankVariables(
            rank="OMPI_COMM_WORLD_RANK",
            world_size="OMPI_COMM_WORLD_SIZE",
            local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
            local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    ),
    Launcher(
        "mpirun (MPICH, Intel MPI)",
        "MPI_LOCALRANKID",
        RankVariables(rank="PMI_RANK", world_size="PMI_SIZE", local_rank="MPI_LOCALRANKID", local_size="MPI_LOCALNRANKS"),
    ),
    Launcher(
        "srun",
        "SLURM_STEP_NUM_TASKS",
        RankVariables(
            rank="SLURM_PROCID",
            world_size="SLURM_STEP_NUM_TASKS",
            local_rank="SLURM_LOCALID",
            local_size="SLURM_STEP_TASKS_PER_NODE",
        ),
        find_rendezvous=_slurm_rendezvous,
        read_local_size=num_node_tasks,
    ),
)
# Processes that a user starts by hand, setting the variables of torch.
BY_HAND = Launcher("a user", "", RankVariables(*RANK_VARS, "LOCAL_WORLD_SIZE"))


def launcher_of_environment() -> Launcher | None:
    """Return the launcher of this process, or None without a known one."""
    for launcher in LAUNCHERS:
        if launcher.marker in os.environ:
            return launcher
    return None


def is_on_one_host(topology: Topology) -> bool:
    """Whether all ranks are known to be on this host.

    Processes started by hand without LOCAL_WORLD_SIZE may be on several hosts, unless MASTER_ADDR is a loopback address.
    """
    if topology.local_size < topology.world_size:
        return False
    if topology.world_size == 1 or launcher_of_environment() is not None or "LOCAL_WORLD_SIZE" in os.environ:
        return True
    return is_loopback(os.environ["MASTER_ADDR"])


def set_up_ranks() -> Topology:
    """Read this process's ranks from the environment, and set the variables that torch and DeepSpeed read.

    If the launcher does not set MASTER_ADDR and MASTER_PORT, they are derived from Slurm's node list and job id, or broadcast
    with mpi4py. Without a launcher, this process is the only rank.

    Raises:
        UserError: Variables are missing, malformed or contradictory.
    """
    launcher = launcher_of_environment()
    if launcher is None:
        return _set_up_without_launcher()
    _check_complete(launcher)
    topology = _read_topology(launcher)
    _check_consistent(launcher, topology)
    rendezvous = _find_rendezvous(launcher, topology)
    os.environ |= dict(zip(MASTER_VARS, rendezvous, strict=True))
    for variable, value in zip(RANK_VARS, _values_of_rank_vars(topology), strict=True):
        os.environ[variable] = str(value)
    return topology


def _values_of_rank_vars(topology: Topology) -> tuple[int, int, int]:
    return topology.rank, topology.world_size, topology.local_rank


def _check_complete(launcher: Launcher) -> None:
    """Check that no variable of the launcher is missing."""
    needed: tuple[str, ...] = launcher.variables
    if "RANK" in needed:
        needed += MASTER_VARS
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise UserError(
            f"{launcher.marker} says that {launcher.name} started this process, but {_not_set(missing)}: start with "
            f"{launcher.name} itself, or unset {launcher.marker}"
        )


def _not_set(missing: Sequence[str]) -> str:
    """Return a clause for messages: "RANK is not set", or "RANK, WORLD_SIZE are not set"."""
    verb = "are" if len(missing) > 1 else "is"
    return f"{', '.join(missing)} {verb} not set"


def _check_consistent(launcher: Launcher, topology: Topology) -> None:
    """Check that torch's variables, if set, agree with the launcher's."""
    values = _values_of_rank_vars(topology)
    for variable, name, value in zip(RANK_VARS, launcher.variables, values, strict=False):
        if variable in os.environ and read_int(variable) != value:
            raise UserError(
                f"{variable} is {os.environ[variable]}, but {name}, set by {launcher.name}, says {value}: unset {variable}, "
                "which another launcher or your shell left"
            )


def _find_rendezvous(launcher: Launcher, topology: Topology) -> tuple[str, str]:
    """Return the address and the port at which the ranks meet. Collective for mpirun without MASTER_ADDR or MASTER_PORT."""
    address, port = (os.environ.get(name) for name in MASTER_VARS)
    if address is not None and port is not None:
        return address, port
    derived_address, derived_port = launcher.find_rendezvous(launcher, topology)
    if address is None:
        address = derived_address
    if port is None:
        port = str(derived_port)
    return address, port


def _set_up_without_launcher() -> Topology:
    """Read the ranks set by hand. If none of the five variables is set, this process is the only rank, and sets them."""
    variables = RANK_VARS + MASTER_VARS
    missing = [name for name in variables if name not in os.environ]
    if len(missing) == len(variables):
        _check_alone(missing)
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    elif missing:
        raise UserError(
            f"the launcher's environment is incomplete: {_not_set(missing)}; start with "
            "`deepspeed launch/pretrain.py ...`, or unset the others to run one process"
        )
    return _read_topology(BY_HAND)


def _check_alone(missing: Sequence[str]) -> None:
    """Check that no unknown launcher started several processes. Each of them would start a separate run."""
    for size in OTHER_WORLD_SIZE_VARS:
        if read_int(size, default=1) > 1:
            raise UserError(
                f"{size} is {os.environ[size]}, from an unknown launcher, and {_not_set(missing)}: each of "
                "these processes would be its own run; set them, or start with deepspeed, torchrun, srun or mpirun"
            )


def _read_topology(launcher: Launcher) -> Topology:
    """Read the ranks from the launcher's variables.

    Raises:
        UserError: A rank or number of ranks is out of range.
    """
    names = launcher.variables
    world_size = read_int(names.world_size)
    if launcher.read_local_size is None:
        local_size = read_int(names.local_size, default=world_size)
    else:
        local_size = launcher.read_local_size()
    topology = Topology(read_int(names.rank), world_size, read_int(names.local_rank), local_size)
    for name, value, size_name, count in (
        (names.rank, topology.rank, names.world_size, topology.world_size),
        (names.local_rank, topology.local_rank, names.local_size, topology.local_size),
    ):
        if not 0 <= value < count:
            raise UserError(f"{name} is {value} and {size_name} is {count}: ranks count from 0 to one less than their number")
    if topology.local_size > topology.world_size:
        raise UserError(f"{names.local_size} is {topology.local_size}, more than {names.world_size}, {topology.world_size}")
    return topology
