"""Processes that divide an evaluation: their batches and, if it does not fit one GPU, the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from megatape.distributed.launchers import discover
from megatape.distributed.mesh import SINGLE, Axis, make_mesh
from megatape.distributed.topology import SINGLE_PROCESS, Topology
from megatape.errors import UserError
from megatape.utils.units import plural


@dataclass(frozen=True)
class EvaluationRanks:
    """The processes that divide the batches of an evaluation, by default a single one.

    Attributes:
        topology: Topology of all processes.
        share: Number of this process's share of the batches.
        shares: Number of shares.
        tensor: Processes that divide the model. They have the same share of the batches.
    """

    topology: Topology = SINGLE_PROCESS
    share: int = 0
    shares: int = 1
    tensor: Axis = SINGLE


SINGLE_RANK = EvaluationRanks()


@contextmanager
def launched_ranks(num_tensor: int = 1) -> Iterator[EvaluationRanks]:
    """Connect the processes that a launcher started. Collective over them.

    Args:
        num_tensor: Number of processes that divide a model.

    Raises:
        UserError: The launcher's variables make no sense, or the number of processes is no multiple of `num_tensor`.
    """
    topology = discover()
    world_size = topology.world_size
    if num_tensor < 1 or world_size % num_tensor:
        started = plural(world_size, "process", "processes")
        example = max(1, num_tensor)
        raise UserError(
            f"tp {num_tensor}: the launcher started {started}: start a multiple, such as deepspeed --num_accelerators "
            f"{example} launch/evaluate.py ..."
        )
    if world_size == 1:
        yield SINGLE_RANK
        return

    # DeepSpeed takes seconds to import.
    from megatape.zero.distributed import initialize_distributed, shut_down

    initialize_distributed(topology)
    try:
        mesh = make_mesh(topology, {"tensor": num_tensor})
        batch = mesh["batch"]
        yield EvaluationRanks(topology, batch.rank, batch.size, mesh["tensor"])
    finally:
        shut_down()
