"""The launcher of this process: ranks from its environment, the rendezvous and the network interface, and its end.

A rank whose launcher has died stops (orphan protection). The kernel could signal this (PR_SET_PDEATHSIG), but does so when
the thread that started the process ends, and not for the parent of the parent: `deepspeed` starts
deepspeed.launcher.launch, which starts the ranks.
"""

import ipaddress
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from megatape.distributed.topology import Topology
from megatape.errors import UserError

NAME_TIMEOUT = 20.0  # seconds; a host or container that is just starting may get its name later
INTERFACE_VARS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
EXTERNAL_ADDRESS = "192.0.2.1"  # belongs to no network (RFC 5737), so the default route leads there


def check_rendezvous() -> None:
    """Check that this process can reach MASTER_ADDR, before ranks wait for each other for long.

    Raises:
        UserError: The name stays unknown for NAME_TIMEOUT, or MASTER_PORT is no port.
    """
    host = os.environ["MASTER_ADDR"]
    port = os.environ["MASTER_PORT"]
    here = socket.gethostname()
    if not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"MASTER_PORT is {port!r} on {here}: give all ranks the same port from 1 to {2**16 - 1}")
    deadline = time.monotonic() + NAME_TIMEOUT
    while True:
        try:
            socket.getaddrinfo(host, port)
        except (OSError, UnicodeError) as error:  # the latter for a label of more than 63 characters
            if time.monotonic() > deadline:
                raise UserError(
                    f"MASTER_ADDR is {host!r}, which {here} does not know ({error}): give all ranks the name or address of "
                    "rank 0's host"
                ) from error
            time.sleep(1.0)
        else:
            return


def address_towards(host: str) -> str:
    """Address of this host on the route to `host`. Nothing is sent.

    Raises:
        UserError: The name is unknown or has no route.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    except OSError as error:
        raise UserError(
            f"no route from {socket.gethostname()} to {host}: {error}; check the host's name and the network"
        ) from None


def interface_of(address: str) -> str:
    """Name of the interface with this address. Raises UserError if there is none."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    raise UserError(f"no network interface of {socket.gethostname()} has the address {address}")


def choose_interface(master: str) -> tuple[str, str]:
    """Choose the interface that reaches the other hosts of the run.

    It is the one on the route to the main host; on that host itself, whose name may resolve to
    127.0.0.1, the one of the default route.

    Args:
        master: Name or address of the main host.

    Returns:
        Name and address of the interface.

    Raises:
        UserError: There is only loopback, which other hosts cannot reach.
    """
    address = address_towards(master)
    if ipaddress.ip_address(address).is_loopback:
        try:
            address = address_towards(EXTERNAL_ADDRESS)
        except ValueError:
            raise UserError(
                f"MASTER_ADDR {master} is {address} on {socket.gethostname()}, which other hosts cannot reach, and there is no "
                "default route: set MASTER_ADDR to an address of the network (deepspeed --master_addr ...)"
            ) from None
    return interface_of(address), address


def export_interface(master: str) -> None:
    """Set the interface of gloo and NCCL unless the user did.

    Gloo would use the one of the host's name, often loopback.

    Args:
        master: Name or address of the main host.

    Raises:
        UserError: No interface reaches other hosts, or the one that the user chose for gloo does
            not exist.
    """
    gloo = os.environ.get("GLOO_SOCKET_IFNAME")
    for name in gloo.split(",") if gloo else ():
        if name not in psutil.net_if_addrs():
            raise UserError(
                f"GLOO_SOCKET_IFNAME is {gloo}: {socket.gethostname()} has no {name}; choose from "
                f"{', '.join(sorted(psutil.net_if_addrs()))}"
            )
    if any(variable not in os.environ for variable in INTERFACE_VARS):
        name, _ = choose_interface(master)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=": exactly this name, not a prefix


def export_loopback() -> None:
    """Let gloo listen on the loopback interface unless the user chose another: all ranks are on this host."""
    with suppress(UserError):  # the host shows no such interface
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_of("127.0.0.1"))


RANK_VARS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # of torch and DeepSpeed
MASTER_VARS = ("MASTER_ADDR", "MASTER_PORT")  # of the rendezvous, on rank 0's host


@dataclass(frozen=True)
class Launcher:
    """A launcher and its environment variables.

    Attributes:
        name: Name for people.
        marker: Variable that only its processes have.
        variables: Those of the fields of a Topology, in its order.
    """

    name: str
    marker: str
    variables: tuple[str, str, str, str]


# In this order: srun, for example, may have started torchrun, which started the process.
LAUNCHERS = (
    Launcher("torchrun", "TORCHELASTIC_RUN_ID", (*RANK_VARS, "LOCAL_WORLD_SIZE")),
    Launcher("deepspeed", "CROSS_RANK", (*RANK_VARS, "LOCAL_SIZE")),
    Launcher(
        "mpirun (Open MPI)",
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    Launcher("mpirun (MPICH, Intel MPI)", "MPI_LOCALRANKID", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
    Launcher(
        "srun",
        "SLURM_STEP_NUM_TASKS",
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ),
)
BY_HAND = Launcher("a user", "", (*RANK_VARS, "LOCAL_WORLD_SIZE"))
OTHER_WORLD_SIZE_VARS = ("PMI_SIZE", "PMIX_SIZE", "PALS_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE")


def launcher_of_environment() -> Launcher | None:
    """The launcher that started this process, None if there is none or it is unknown."""
    return next((launcher for launcher in LAUNCHERS if launcher.marker in os.environ), None)


def is_on_one_host(topology: Topology) -> bool:
    """Whether all ranks are known to be on this host.

    Processes started by hand without LOCAL_WORLD_SIZE may be on several hosts, unless MASTER_ADDR is a loopback address.

    Args:
        topology: All ranks.
    """
    if topology.local_size < topology.world_size:
        return False
    if launcher_of_environment() is not None or "LOCAL_WORLD_SIZE" in os.environ or topology.world_size == 1:
        return True
    addresses = [entry[4][0] for entry in socket.getaddrinfo(os.environ["MASTER_ADDR"], None)]
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses)


def discover() -> Topology:
    """Read this process's ranks from the environment of its launcher.

    The variables of torch and DeepSpeed are set. Where the launcher sets no rendezvous address, it
    is derived from Slurm's node list and job id, or exchanged by mpi4py. Without a launcher, this
    process is the only rank.

    Raises:
        UserError: Variables are missing, malformed or contradictory.
    """
    launcher = launcher_of_environment()
    if launcher is None:
        return _without_launcher()
    needed = launcher.variables + (MASTER_VARS if "RANK" in launcher.variables else ())
    if missing := [name for name in needed if name not in os.environ]:
        raise UserError(
            f"{launcher.marker} says that {launcher.name} started this process, but {', '.join(missing)} not set: start with "
            f"{launcher.name} itself, or unset {launcher.marker}"
        )
    topology = _read_topology(launcher)
    values = topology.rank, topology.world_size, topology.local_rank
    for variable, name, value in zip(RANK_VARS, launcher.variables, values, strict=False):
        if variable in os.environ and _read_int(variable) != value:
            raise UserError(
                f"{variable} is {os.environ[variable]}, but {name}, set by {launcher.name}, says {value}: unset {variable}, "
                "which another launcher or your shell left"
            )
    if any(name not in os.environ for name in MASTER_VARS):
        address, port = _slurm_rendezvous(topology) if launcher.name == "srun" else _mpi_rendezvous(topology, launcher)
        os.environ.setdefault("MASTER_ADDR", address)
        os.environ.setdefault("MASTER_PORT", str(port))
    os.environ |= {name: str(value) for name, value in zip(RANK_VARS, values, strict=True)}
    return topology


def _without_launcher() -> Topology:
    """Ranks without a known launcher: from all five variables, or the only rank without any."""
    missing = [name for name in RANK_VARS + MASTER_VARS if name not in os.environ]
    if len(missing) == len(RANK_VARS + MASTER_VARS):
        for size in OTHER_WORLD_SIZE_VARS:
            if _read_int(size, default=1) > 1:
                raise UserError(
                    f"{size} is {os.environ[size]}, from an unknown launcher, and {', '.join(missing)} are not set: each of "
                    "these processes would be its own run; set them, or start with deepspeed, torchrun, srun or mpirun"
                )
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    elif missing:
        raise UserError(
            f"the launcher's environment is incomplete: {', '.join(missing)} not set; start with "
            "`deepspeed launch/pretrain.py ...`, or unset the others to run one process"
        )
    return _read_topology(BY_HAND)


def _read_topology(launcher: Launcher) -> Topology:
    """The ranks by the launcher's variables. Raises UserError if they make no sense."""
    rank, world_size, local_rank, local_size = launcher.variables
    size = _read_int(world_size)
    num_local = _num_node_tasks() if launcher.name == "srun" else _read_int(local_size, default=size)
    topology = Topology(_read_int(rank), size, _read_int(local_rank), num_local)
    for name, value, of, count in (
        (rank, topology.rank, world_size, topology.world_size),
        (local_rank, topology.local_rank, local_size, topology.local_size),
    ):
        if not 0 <= value < count:
            raise UserError(f"{name} is {value} and {of} is {count}: ranks count from 0 to one less than their number")
    if topology.local_size > topology.world_size:
        raise UserError(f"{local_size} is {topology.local_size}, more than {world_size}, {topology.world_size}")
    return topology


def _num_node_tasks() -> int:
    """Number of the Slurm step's tasks on this node: entry SLURM_NODEID of a list like 2(x3),1."""
    text = os.environ["SLURM_STEP_TASKS_PER_NODE"]
    node = _read_int("SLURM_NODEID")
    for entry in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry)
        if match is None:
            raise UserError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}: expected a list like 2(x3),1")
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    raise UserError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}, which has no entry for SLURM_NODEID {os.environ['SLURM_NODEID']}")


def _slurm_rendezvous(topology: Topology) -> tuple[str, int]:
    """Rank 0's host, the first of the step, and a port derived from job and step."""
    if topology.rank == 0 and _read_int("SLURM_NODEID") != 0:
        raise UserError(
            f"SLURM_PROCID 0 is on node {os.environ['SLURM_NODEID']} of SLURM_STEP_NODELIST, not on its first: choose another "
            "--distribution, or set MASTER_ADDR and MASTER_PORT"
        )
    return first_host(os.environ.get("SLURM_STEP_NODELIST", "")), 20000 + (
        31 * _read_int("SLURM_JOB_ID") + _read_int("SLURM_STEP_ID")
    ) % 10000


def first_host(nodelist: str) -> str:
    """Parse the first host of a list in Slurm's notation: rack[1-2]n[01-04,7],login -> rack1n01.

    Raises:
        UserError: There is none.
    """
    match = re.match(r"(?:[^,\[\]]|\[[^\[\]]+\])+", nodelist)
    if match is None:
        raise UserError(f"SLURM_STEP_NODELIST is {nodelist!r}: expected a list of hosts like n[1-2]; or set MASTER_ADDR")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", match.group())


def _mpi_rendezvous(topology: Topology, launcher: Launcher) -> tuple[str, int]:
    """Rank 0's address, as another host sees it, and a free port. Collective: rank 0 broadcasts."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpi4py does not find the library of {launcher.name}, which started this process: {error}; or set MASTER_ADDR and "
            "MASTER_PORT on all ranks"
        ) from None
    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (topology.rank, topology.world_size):
        raise UserError(
            f"{' and '.join(launcher.variables[:2])} say {topology.rank} of {topology.world_size}, mpi4py says "
            f"{world.Get_rank()} of {world.Get_size()}: mpi4py uses another MPI library than {launcher.name}; install "
            "one of them only, or set MASTER_ADDR and MASTER_PORT on all ranks"
        )
    hosts = world.allgather(socket.gethostname())
    rendezvous = None
    if topology.is_main:
        other = next((host for host in hosts if host != hosts[0]), None)
        rendezvous = ("127.0.0.1" if other is None else address_towards(other), free_port())
    address, port = world.bcast(rendezvous)
    MPI.Finalize()  # MPI is not used again; without this, a rank that fails later would wait for the others at exit
    return address, port


def free_port() -> int:
    """A port of this host on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _read_int(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, default)
    try:
        return int(text)  # type: ignore[arg-type]  # None is rejected below like any other non-number
    except (TypeError, ValueError):
        raise UserError(f"{name} is {text!r}: expected an integer") from None


LOG = logging.getLogger(__name__)

POLL_INTERVAL = 1.0  # seconds
PR_SET_PDEATHSIG = 1  # of prctl(2), on Linux only: the signal that a process gets when its parent ends
DEEPSPEED_COMMANDS = ("deepspeed", "deepspeed.pt", "ds", "deepspeed.launcher.runner")
LOG_OPTIONS = ("--quiet", "--log_level", "--verbose")  # --verbose is an option of MegaTAPE's commands


def quiet_launcher(words: Sequence[str]) -> list[str]:
    """Return a command in which DeepSpeed's launcher only logs errors, unless it has an option for logging.

    By default, the launcher prints a dozen lines around a run's own.

    Args:
        words: Command and arguments. Commands of other launchers are returned unchanged.
    """
    chooses = any(word.partition("=")[0] in LOG_OPTIONS for word in words)
    if chooses or Path(words[0]).name not in DEEPSPEED_COMMANDS:
        return list(words)
    return [words[0], "--quiet", *words[1:]]


def stop_with_launcher() -> None:
    """Send this process SIGTERM once its launcher has ended.

    Without a launcher it does nothing: the process may outlive the shell from which it was started.
    """
    if launcher_of_environment() is not None:
        parent = os.getppid()
        threading.Thread(target=_stop_after, args=(parent, _deepspeed_command(parent)), name="parent", daemon=True).start()


def _stop_after(parent: int, runner: int | None) -> None:
    """Wait until one of two processes has ended, then send SIGTERM to this one."""
    while (ended := _ended_process(parent, runner)) is None:
        time.sleep(POLL_INTERVAL)
    LOG.warning("the launcher (process %s) has ended: this rank stops, as on SIGTERM", ended)
    os.kill(os.getpid(), signal.SIGTERM)


def _ended_process(parent: int, runner: int | None) -> int | None:
    """The first of two processes to have ended: its child has another parent now."""
    if os.getppid() != parent:
        return parent
    with suppress(psutil.Error, OSError):  # a process that is not shown just now has not ended
        if runner is not None and psutil.Process(parent).ppid() != runner:
            return runner
    return None


def _deepspeed_command(parent: int) -> int | None:
    """The parent of `parent` if it is DeepSpeed's command.

    On other hosts it is a remote shell, which may end earlier.
    """
    with suppress(psutil.Error, OSError):
        process = psutil.Process(parent).parent()
        if process is not None and any(Path(word).name in DEEPSPEED_COMMANDS for word in process.cmdline()[:3]):
            return process.pid
    return None
