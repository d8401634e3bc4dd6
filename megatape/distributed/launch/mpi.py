"""Address and port at which ranks started by mpirun meet, broadcast with mpi4py."""

import socket
from collections.abc import Sequence

from megatape.distributed.launch.network import address_towards, free_port
from megatape.distributed.topology import Topology
from megatape.errors import UserError


def mpi_rendezvous(topology: Topology, launcher: str, variables: Sequence[str]) -> tuple[str, int]:
    """Return rank 0's address, as seen from another host, and a free port on it. Collective.

    Args:
        topology: Ranks of this process.
        launcher: Name of the launcher, for messages.
        variables: Names of the launcher's variables for rank and number of ranks, for messages.

    Raises:
        UserError: mpi4py finds no MPI library, or not the launcher's.
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
        address = address_towards(other_hosts[0]) if other_hosts else "127.0.0.1"
        rendezvous = (address, free_port())
    address, port = world.bcast(rendezvous)
    # MPI is not used again. Without this call, a rank that fails later would wait for the others at exit.
    MPI.Finalize()
    return address, port
