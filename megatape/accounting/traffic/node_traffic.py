"""Bytes leaving a node, and a warning if a sample's ranks span nodes."""

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.traffic.model_traffic import model_traffic
from megatape.distributed.traffic import ALL_TO_ALL, Sent
from megatape.utils.text.units import format_bytes


def spanning_warning(layout: TrainingLayout, ranks_per_node: int) -> str | None:
    """Return a warning about sequence-parallel ranks on several nodes, or None if a sample's ranks share a node.

    Args:
        layout: Layout of the run.
        ranks_per_node: Ranks on each node.
    """
    parallel = layout.workload.parallel
    per_node = max(1, ranks_per_node // parallel.tp)
    if parallel.sp <= per_node:
        return None
    sent = model_traffic(layout.workload, "sequence").sent
    outside = leaving_node(sent, parallel.sp, per_node) * layout.num_micro_batches
    return (
        f"the {parallel.tp * parallel.sp} ranks of a sample (parallel.tp {parallel.tp} x parallel.sp {parallel.sp}) are on "
        f"nodes of {ranks_per_node}: around attention each sends {format_bytes(outside)} per step to other nodes, and waits "
        "for it; choose a parallel.sp that fits a node if its memory holds the sample, and parallel.cp for the rest"
    )


def leaving_node(sent: Sent, group_size: int, members_per_node: int) -> float:
    """Return the bytes leaving the node, averaged over the group's ranks.

    With G ranks in the group, M per node, a ring collective sends 1/M of its bytes to the next node, because one in M ranks has
    its successor there. An all-to-all sends the same to every rank, so (G - M) / (G - 1) of it to other nodes.

    Args:
        sent: Bytes that a rank sends, by collective.
        group_size: G.
        members_per_node: M.
    """
    if group_size <= members_per_node:
        return 0.0
    total = 0.0
    for collective, count in sent.items():
        if collective == ALL_TO_ALL:
            share = (group_size - members_per_node) / (group_size - 1)
        else:
            share = 1 / members_per_node
        total += count * share
    return total
