"""Bytes that leave a GPU, by link: to GPUs of its node, and to other nodes."""

from megatape.accounting.layout import TrainingLayout
from megatape.accounting.node_traffic import leaving_node
from megatape.accounting.traffic import plan_traffic


def links(layout: TrainingLayout, gpus_per_node: int) -> dict[str, tuple[float, float]]:
    """Return the bytes that a rank sends in a step by group of ranks, (inside its node, to other nodes).

    Args:
        layout: Ranks of the run, and their workload.
        gpus_per_node: Number of ranks on each node.
    """
    parallel = layout.workload.parallel
    copy_ranks = layout.zero.hpz_ranks
    node = gpus_per_node
    replicas_in_node = max(1, node // parallel.tp)  # ranks of a node with the same share of the model
    samples_in_node = max(1, replicas_in_node // parallel.sp)
    # Group -> (ranks of the group, ranks of the group in one node).
    sizes = {
        "tensor": (parallel.tp, min(parallel.tp, node)),
        "sequence": (parallel.sp, min(parallel.sp, replicas_in_node)),
        "context": (parallel.cp, min(parallel.cp, samples_in_node)),
        "data": (layout.replicas, replicas_in_node),
        "hpz": (copy_ranks, min(copy_ranks, node)),
        "all": (layout.world_size, node),
    }
    sent = plan_traffic(layout).sent
    result = {}
    for group, (size, size_in_node) in sizes.items():
        outside = leaving_node(sent[group], size, size_in_node)
        inside = sent[group].total() - outside
        result[group] = (inside, outside)
    return result
