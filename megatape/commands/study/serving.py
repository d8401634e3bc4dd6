"""megatape study serving: megatape study serving --lengths 128,1024,3000 --batches 1,8"""

import argparse

from megatape.commands import options
from megatape.commands.study import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--config", metavar="FILE", help="configuration of the shape (default: the paper's 155M model)")
    parser.add_argument("--layers", type=options.positive, metavar="N", help="number of layers (default: the model's)")
    parser.add_argument("--encodings", default="tape", metavar="A,B", help="encodings to measure (default %(default)s)")
    parser.add_argument(
        "--lengths",
        type=positives,
        default="128,1024,3000",
        metavar="N,N",
        help="tokens of the prompts (default %(default)s)",
    )
    parser.add_argument(
        "--batches", type=positives, default="1,8", metavar="B,B", help="prompts at a time (default %(default)s)"
    )
    parser.add_argument(
        "--padding",
        choices=("none", "left", "both"),
        default="both",
        help="pad the first half of every second prompt (default %(default)s)",
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="precision of the weights (default %(default)s)"
    )
    parser.add_argument(
        "--threads", type=options.positive, default=1, metavar="N", help="threads on a CPU (default %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=options.positive,
        default=5,
        metavar="N",
        help="timing rounds, after a warm-up round (default %(default)s)",
    )


def positives(text: str) -> list[int]:
    """The numbers of a list such as "1,8"."""
    return [options.positive(number) for number in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    options.check_config(args)
    from megatape.study.serving import study

    paddings = ["none", "left"] if args.padding == "both" else [args.padding]
    return show(
        study(
            args.config,
            args.layers,
            args.encodings,
            args.lengths,
            args.batches,
            paddings,
            args.dtype,
            args.threads,
            args.rounds,
        )
    )
