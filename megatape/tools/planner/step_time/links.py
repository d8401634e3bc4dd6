"""Bytes leaving a GPU, to its own node and to other nodes."""

from typing import NamedTuple

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.traffic.node_traffic import leaving_node
from megatape.accounting.traffic.rank_traffic import RankGroup, plan_traffic


class LinkBytes(NamedTuple):
    """Bytes that a rank sends in a step.

    Attributes:
        inside: Bytes sent to its own node.
        outside: Bytes sent to other nodes.
    """

    inside: float
    outside: float


class _GroupSize(NamedTuple):
    """Number of ranks in a group, and of those on each node."""

    total: int
    in_node: int


def sent_by_link(layout: TrainingLayout, gpus_per_node: int) -> dict[RankGroup, LinkBytes]:
    """Return the bytes that a rank sends in a step, by group of ranks.

    Args:
        layout: Layout of the run.
        gpus_per_node: Ranks on each node.
    """
    sent = plan_traffic(layout).sent
    result = {}
    for group, size in _group_sizes(layout, gpus_per_node).items():
        outside = leaving_node(sent[group], size.total, size.in_node)
        inside = sent[group].total() - outside
        result[group] = LinkBytes(inside, outside)
    return result


def _group_sizes(layout: TrainingLayout, gpus_per_node: int) -> dict[RankGroup, _GroupSize]:
    """Return the size of each group of ranks. Tensor ranks are neighbors, then sequence ranks."""
    parallel = layout.workload.parallel
    copy_ranks = layout.zero.hpz_ranks
    # Number of ranks in a node that train the same weights.
    replicas_in_node = max(1, gpus_per_node // parallel.tp)
    samples_in_node = max(1, replicas_in_node // parallel.sp)
    return {
        RankGroup.TENSOR: _GroupSize(parallel.tp, min(parallel.tp, gpus_per_node)),
        RankGroup.SEQUENCE: _GroupSize(parallel.sp, min(parallel.sp, replicas_in_node)),
        RankGroup.CONTEXT: _GroupSize(parallel.cp, min(parallel.cp, samples_in_node)),
        RankGroup.REPLICAS: _GroupSize(layout.num_replicas, replicas_in_node),
        RankGroup.SECOND_COPY: _GroupSize(copy_ranks, min(copy_ranks, gpus_per_node)),
        RankGroup.ALL: _GroupSize(layout.world_size, gpus_per_node),
    }
