"""Ranks per node, address and port at which ranks started by srun meet, from Slurm's environment variables."""

import os
import re

from megatape.distributed.launch.environment import read_int
from megatape.distributed.topology import Topology
from megatape.errors import UserError

# Range of ports. A run's port is derived from its job and step.
FIRST_SLURM_PORT = 20000
NUM_SLURM_PORTS = 10000


def num_node_tasks() -> int:
    """Return the number of tasks on this node: entry SLURM_NODEID in a list like 2(x3),1."""
    text = os.environ["SLURM_STEP_TASKS_PER_NODE"]
    num_nodes_left = read_int("SLURM_NODEID")
    for entry in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry)
        if match is None:
            raise UserError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}: expected a list like 2(x3),1")
        num_tasks, num_nodes = match.groups(default="1")
        num_nodes_left -= int(num_nodes)
        if num_nodes_left < 0:
            return int(num_tasks)
    raise UserError(f"SLURM_STEP_TASKS_PER_NODE is {text!r}, which has no entry for SLURM_NODEID {os.environ['SLURM_NODEID']}")


def slurm_rendezvous(topology: Topology) -> tuple[str, int]:
    """Return the step's first host, which has rank 0, and a port derived from job and step.

    Raises:
        UserError: Rank 0 is on another host, or variables are malformed.
    """
    if topology.rank == 0 and read_int("SLURM_NODEID") != 0:
        raise UserError(
            f"SLURM_PROCID 0 is on node {os.environ['SLURM_NODEID']} of SLURM_STEP_NODELIST, not on its first: choose another "
            "--distribution, or set MASTER_ADDR and MASTER_PORT"
        )
    host = first_host(os.environ.get("SLURM_STEP_NODELIST", ""))
    number = 31 * read_int("SLURM_JOB_ID") + read_int("SLURM_STEP_ID")
    return host, FIRST_SLURM_PORT + number % NUM_SLURM_PORTS


def first_host(nodelist: str) -> str:
    """Parse the first host in Slurm's list notation: rack[1-2]n[01-04,7],login -> rack1n01.

    Raises:
        UserError: The list has no host.
    """
    match = re.match(r"(?:[^,\[\]]|\[[^\[\]]+\])+", nodelist)
    if match is None:
        raise UserError(f"SLURM_STEP_NODELIST is {nodelist!r}: expected a list of hosts like n[1-2]; or set MASTER_ADDR")
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", match.group())
