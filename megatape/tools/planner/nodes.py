"""Checks a run's ranks against the size of nodes."""

from megatape.config import ParallelConfig
from megatape.errors import UserError
from megatape.utils.text.units import plural


def check_nodes(parallel: ParallelConfig, gpus_per_node: int) -> None:
    """Check that the ranks of a sample fill nodes evenly.

    Args:
        parallel: Parallel section.
        gpus_per_node: Ranks on each node.

    Raises:
        UserError: They do not.
    """
    node = gpus_per_node
    sizes = {"parallel.tp": parallel.tp, "parallel.tp x parallel.sp": parallel.tp * parallel.sp}
    sizes["parallel.tp x parallel.sp x parallel.cp"] = parallel.sample_ranks
    for name, size in sizes.items():
        if size % node and node % size:
            raise UserError(
                f"{name} {size} and {plural(node, 'GPU')} per node: one must divide the other, for ranks to fill nodes evenly"
            )
