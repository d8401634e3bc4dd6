"""Slurm jobs."""

from typing import Any

from megatape.tools.cluster.slurm.job import Job


def new_job(name: str, nodes: int, ranks_per_node: int, gpus: bool, **values: Any) -> Job:
    ranks = {"gpus_per_node" if gpus else "cpu_ranks_per_node": ranks_per_node}
    return Job(**{"name": name, "nodes": nodes} | ranks | values)
