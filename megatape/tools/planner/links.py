"""Bytes that leave a GPU, by link: to GPUs of its node, and to other nodes."""

from megatape.accounting.traffic import leaving_node, plan_traffic
from megatape.config import ClusterConfig, Config


def links(config: Config, cluster: ClusterConfig) -> dict[str, tuple[float, float]]:
    """Return the bytes that a rank sends in a step by group of ranks, (inside its node, to other nodes).

    Args:
        config: Configuration of the run.
        cluster: Machines of the run.
    """
    parallel = config.parallel
    node = cluster.gpus_per_node
    replicas_in_node = max(1, node // parallel.tp)  # ranks of a node with the same share of the model
    samples_in_node = max(1, replicas_in_node // parallel.sp)
    # Group -> (ranks of the group, ranks of the group in one node).
    sizes = {
        "tensor": (parallel.tp, min(parallel.tp, node)),
        "sequence": (parallel.sp, min(parallel.sp, replicas_in_node)),
        "context": (parallel.cp, min(parallel.cp, samples_in_node)),
        "data": (config.replicas(cluster.world_size), replicas_in_node),
        "hpz": (config.zero.hpz_ranks, min(config.zero.hpz_ranks, node)),
        "all": (cluster.world_size, node),
    }
    sent = plan_traffic(config, cluster.world_size).sent
    result = {}
    for group, (size, size_in_node) in sizes.items():
        outside = leaving_node(sent[group], size, size_in_node)
        inside = sent[group].total() - outside
        result[group] = (inside, outside)
    return result
