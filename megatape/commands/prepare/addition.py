"""megatape prepare addition: megatape prepare addition --digits 5 --output runs/data/addition_5"""

import argparse

from megatape.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--digits", type=int, required=True, metavar="D", help="operands have 1 to D digits")
    parser.add_argument(
        "--per-cell",
        type=int,
        default=10_000,
        metavar="N",
        help="training problems per cell of the D x D grid of operand lengths (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the problems and the held-out split (default %(default)s)")
    options.add_new_data(parser)


def run(args: argparse.Namespace) -> int:
    """Write the data directory."""
    from tqdm import tqdm

    from megatape.data.addition import AdditionTask, longest_document, prepare_addition

    task = AdditionTask(args.digits, args.per_cell, args.seed)
    with tqdm(desc="tokens", unit_scale=True, delay=0.5) as bar:
        index = prepare_addition(task, args.output, lambda tokens: bar.update(tokens - bar.n) and None)
    for name, split in index.splits.items():
        print(f"{name}: {split.documents:,} problems, {split.tokens:,} tokens, {len(split.shards)} shards")
    longest = longest_document(args.digits)
    print(f"the longest problem has {longest} tokens: data.sequence_length must be at least {longest - 1}")
    print(f"wrote {args.output}")
    return 0
