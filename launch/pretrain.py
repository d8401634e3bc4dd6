"""Pretrain a language model.

deepspeed --num_accelerators 2 launch/pretrain.py --config configs/tape_tiny.json
python launch/pretrain.py --config configs/tape_tiny.json --set training.steps=100
"""

import argparse
import sys

from megatape.config import load_config


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="FILE", help="JSON configuration (docs/config.md)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one value; repeatable"
    )
    parser.add_argument(
        "--resume", metavar="auto|FOLDER", help="go on from the run's newest sound checkpoint, or from this one"
    )
    parser.add_argument(
        "--profile", type=int, default=0, metavar="K", help="trace K steps into the run's folder and print a summary"
    )
    parser.add_argument("--dry-run", action="store_true", help="print sizes and costs, and stop")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="ranks that --dry-run reckons with")
    parser.add_argument(
        "--local_rank", type=int, help=argparse.SUPPRESS
    )  # the deepspeed launcher adds it; the environment has it too
    return parser.parse_args()


def main() -> int:
    args = arguments()
    # A configuration with a fault must not cost the seconds that importing torch and DeepSpeed takes.
    try:
        config = load_config(args.config, args.set)
        if args.profile < 0:
            raise ValueError(f"--profile {args.profile}: give the number of steps to trace, 0 for none")
    except (ValueError, OSError) as error:
        return _fail(str(error))
    if args.dry_run:
        from megatape.plan.report import describe

        try:
            print(describe(config, args.world_size))
        except ValueError as error:
            return _fail(str(error))
        return 0
    from megatape.training.pretrain import pretrain

    try:
        return pretrain(config, args.resume, args.profile)
    except KeyboardInterrupt:  # before training started, or pressed twice
        print("interrupted", file=sys.stderr)
        return 130


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
