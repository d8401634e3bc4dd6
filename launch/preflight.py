"""Check all ranks before a run: versions, devices, network, collectives, folders, clocks. Start it as the run will be started.

deepspeed --hostfile hostfile launch/preflight.py --config configs/tape_155m.json
srun --nodes 2 --ntasks-per-node 8 python launch/preflight.py --config configs/tape_155m.json
"""

import argparse
import sys

from megatape.config import load_config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="FILE", help="JSON configuration (docs/config.md)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one value; repeatable"
    )
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # the deepspeed launcher adds it
    args = parser.parse_args()
    try:
        config = load_config(args.config, args.set)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from megatape.cluster.preflight import preflight

    return preflight(config)


if __name__ == "__main__":
    sys.exit(main())
