"""Bytes that leave a GPU, by link: to GPUs of its node, and to other nodes."""

from typing import NamedTuple

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.node_traffic import leaving_node
from megatape.accounting.traffic import RankGroup, plan_traffic


class LinkBytes(NamedTuple):
    """Bytes that a rank sends in a step.

    Attributes:
        inside: Bytes to ranks of its node.
        outside: Bytes to ranks of other nodes.
    """

    inside: float
    outside: float


class _GroupSize(NamedTuple):
    """Number of ranks in a group.

    Attributes:
        total: Number of ranks.
        in_node: Number of ranks on each node.
    """

    total: int
    in_node: int


def links(layout: TrainingLayout, gpus_per_node: int) -> dict[RankGroup, LinkBytes]:
    """Return the bytes that a rank sends in a step, by group of ranks.

    Args:
        layout: Ranks of the run, and their workload.
        gpus_per_node: Number of ranks on each node.
    """
    sent = plan_traffic(layout).sent
    result = {}
    for group, size in _group_sizes(layout, gpus_per_node).items():
        outside = leaving_node(sent[group], size.total, size.in_node)
        inside = sent[group].total() - outside
        result[group] = LinkBytes(inside, outside)
    return result


def _group_sizes(layout: TrainingLayout, gpus_per_node: int) -> dict[RankGroup, _GroupSize]:
    """Return the size of each group of ranks. Ranks of tensor groups are neighbors, then those of sequence groups."""
    parallel = layout.workload.parallel
    copy_ranks = layout.zero.hpz_ranks
    replicas_in_node = max(1, gpus_per_node // parallel.tp)  # ranks of a node with the same share of the model
    samples_in_node = max(1, replicas_in_node // parallel.sp)
    return {
        RankGroup.TENSOR: _GroupSize(parallel.tp, min(parallel.tp, gpus_per_node)),
        RankGroup.SEQUENCE: _GroupSize(parallel.sp, min(parallel.sp, replicas_in_node)),
        RankGroup.CONTEXT: _GroupSize(parallel.cp, min(parallel.cp, samples_in_node)),
        RankGroup.REPLICAS: _GroupSize(layout.replicas, replicas_in_node),
        RankGroup.SECOND_COPY: _GroupSize(copy_ranks, min(copy_ranks, gpus_per_node)),
        RankGroup.ALL: _GroupSize(layout.world_size, gpus_per_node),
    }
