"""Say what a configuration needs and how fast it may run on a cluster, before anybody waits in a queue.

python launch/plan.py --config configs/tape_7b.json
python launch/plan.py --config configs/tape_7b.json --nodes 2 --gpus-per-node 8 --gpu h200 --set training.micro_batch_size=1
"""

import argparse
import sys

from megatape.config import load_config
from megatape.plan.gpus import GPUS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="FILE", help="JSON configuration (docs/config.md)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one value; repeatable"
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="machines; default: cluster.nodes of the file")
    parser.add_argument("--gpus-per-node", type=int, metavar="G", help="default: cluster.gpus_per_node of the file")
    parser.add_argument(
        "--gpu", metavar="NAME|FILE", help=f"{', '.join(GPUS)}, or a JSON file; default: cluster.gpu of the file"
    )
    return parser.parse_args()


def main() -> int:
    args = arguments()
    stated = {"nodes": args.nodes, "gpus_per_node": args.gpus_per_node, "gpu": args.gpu}
    overrides = [f"cluster.{key}={value}" for key, value in stated.items() if value is not None]
    try:
        config = load_config(args.config, args.set + overrides)
        if config.cluster is None:
            raise ValueError(f"{args.config} has no cluster section: give --nodes, --gpus-per-node and --gpu")
        from megatape.plan.report import plan

        print(plan(config, config.cluster))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
