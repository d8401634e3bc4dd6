"""Rendezvous of ranks that mpirun started, exchanged by mpi4py."""

import socket
from collections.abc import Sequence

from megatape.distributed.network import address_towards, free_port
from megatape.distributed.topology import Topology
from megatape.errors import UserError


def mpi_rendezvous(topology: Topology, launcher: str, variables: Sequence[str]) -> tuple[str, int]:
    """Return rank 0's address, as another host sees it, and a free port. Collective: rank 0 broadcasts.

    Args:
        topology: All ranks.
        launcher: Name of the launcher, for messages.
        variables: Names of the launcher's variables for the rank and the number of ranks.

    Raises:
        UserError: mpi4py finds no MPI library, or another one than the launcher's.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"mpi4py does not find the library of {launcher}, which started this process: {error}; or set MASTER_ADDR and "
            "MASTER_PORT on all ranks"
        ) from None
    world = MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (topology.rank, topology.world_size):
        raise UserError(
            f"{' and '.join(variables)} say {topology.rank} of {topology.world_size}, mpi4py says "
            f"{world.Get_rank()} of {world.Get_size()}: mpi4py uses another MPI library than {launcher}; install "
            "one of them only, or set MASTER_ADDR and MASTER_PORT on all ranks"
        )
    hosts = world.allgather(socket.gethostname())
    rendezvous = None
    if topology.is_main:
        other_hosts = [host for host in hosts if host != hosts[0]]
        address = "127.0.0.1"
        if other_hosts:
            address = address_towards(other_hosts[0])
        rendezvous = (address, free_port())
    address, port = world.bcast(rendezvous)
    MPI.Finalize()  # MPI is not used again. Without this, a rank that fails later would wait for the others at exit.
    return address, port
