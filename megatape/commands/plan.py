"""Estimates memory, traffic and step time on a cluster."""

from pathlib import Path

from megatape.accounting.gpus import GPUS
from megatape.commands.cli.shared_options import ConfigOptions
from megatape.config import load_config
from megatape.utils.options import option

EXAMPLE = "megatape plan --config configs/tape_7b.json --nodes 2 --gpus-per-node 8 --gpu h200"


class Options(ConfigOptions):
    """A run, and the cluster to plan it for.

    Attributes:
        nodes: number of nodes (default: cluster.nodes)
        gpus_per_node: GPUs per node (default: cluster.gpus_per_node)
        host_gib: host memory per node in GiB (default: cluster.host_gib)
        search: print the fastest settings that fit the cluster (ranks, ZeRO, activation
            checkpointing, offloading and micro-batch), and recommend the simplest of the equally
            fast ones; takes at most 10 seconds (docs/choose_ranks.md)
        measured: results.jsonl of `megatape benchmark gpu`, to correct the estimated step time
        price: price of a GPU-hour in any currency, to print the cost of the run
    """

    nodes: int | None = option(None, metavar="N")
    gpus_per_node: int | None = option(None, metavar="G")
    gpu: str | None = option(
        None,
        description=f"GPU type: {', '.join(GPUS)}, or a JSON file (default: cluster.gpu)",
        metavar="NAME|FILE",
        completions=tuple(GPUS),
    )
    host_gib: float | None = option(None, metavar="GIB")
    search: bool = False
    measured: Path | None = option(None, metavar="FILE")
    price: float | None = option(None, ge=0, metavar="PRICE")


def run(options: Options) -> None:
    """Print the plan."""
    cluster = {
        "nodes": options.nodes,
        "gpus_per_node": options.gpus_per_node,
        "gpu": options.gpu,
        "host_gib": options.host_gib,
    }
    overrides = list(options.set)
    for key, value in cluster.items():
        if value is not None:
            overrides.append(f"cluster.{key}={value}")
    config = load_config(options.config, overrides)
    from megatape.tools.planner.report import report
    from megatape.tools.planner.search_report import search_report

    if options.search:
        print(search_report(config, options.measured, options.price))
    else:
        print(report(config, options.measured, options.price))
