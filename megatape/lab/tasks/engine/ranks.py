"""Processes sharing an evaluation: batches are split across them, and a large model is sharded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from megatape.distributed.launch.launchers import set_up_ranks
from megatape.distributed.mesh import SINGLE, Axis, make_mesh
from megatape.distributed.topology import SINGLE_PROCESS, Topology
from megatape.errors import UserError, flag
from megatape.utils.text.units import plural


@dataclass(frozen=True)
class EvaluationRanks:
    """This process among those sharing an evaluation. A single process by default.

    Attributes:
        topology: Topology of all processes.
        share: Index of this process's share of batches.
        num_shares: Number of shares.
        tensor: Ranks sharding the model. They run the same batches.
    """

    topology: Topology = SINGLE_PROCESS
    share: int = 0
    num_shares: int = 1
    tensor: Axis = SINGLE


SINGLE_RANK = EvaluationRanks()


@contextmanager
def launched_ranks(num_tensor: int = 1) -> Iterator[EvaluationRanks]:
    """Connect the processes started by a launcher. Collective.

    Args:
        num_tensor: Number of ranks sharding a model.

    Raises:
        UserError: The launcher's variables are inconsistent, or the number of processes is not a multiple of `num_tensor`.
    """
    topology = set_up_ranks()
    world_size = topology.world_size
    if num_tensor < 1 or world_size % num_tensor:
        started = plural(world_size, "process", "processes")
        example = max(1, num_tensor)
        raise UserError(
            f"{flag('tp')} {num_tensor}: the launcher started {started}: start a multiple, such as deepspeed "
            f"--num_accelerators {example} launch/evaluate.py ..."
        )
    if world_size == 1:
        yield SINGLE_RANK
        return

    # DeepSpeed takes seconds to import.
    from megatape.zero.setup.process_group import initialize_distributed, shut_down

    initialize_distributed(topology)
    try:
        mesh = make_mesh(topology, {"tensor": num_tensor})
        batch = mesh["batch"]
        yield EvaluationRanks(topology, batch.rank, batch.size, mesh["tensor"])
    finally:
        shut_down()
