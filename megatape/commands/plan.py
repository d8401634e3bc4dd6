"""megatape plan: megatape plan --config configs/tape_7b.json --nodes 2 --gpus-per-node 8 --gpu h200"""

import argparse
from pathlib import Path

from megatape.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from megatape.plan.gpus import GPUS

    options.add_config(parser)
    parser.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: cluster.nodes)")
    parser.add_argument("--gpus-per-node", type=int, metavar="G", help="GPUs per node (default: cluster.gpus_per_node)")
    parser.add_argument("--gpu", metavar="NAME|FILE", help=f"{', '.join(GPUS)}, or a JSON file (default: cluster.gpu)")
    parser.add_argument(
        "--measured", type=Path, metavar="FILE", help="results.jsonl of megatape benchmark gpu: correct the step time by it"
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    stated = {"nodes": args.nodes, "gpus_per_node": args.gpus_per_node, "gpu": args.gpu}
    args.set += [f"cluster.{key}={value}" for key, value in stated.items() if value is not None]
    config = options.read_config(args)
    from megatape.plan.report import report

    print(report(config, args.measured))
    return 0
