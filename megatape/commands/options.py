"""Arguments that several commands share."""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape import imports
from megatape.config import Config, load_config
from megatape.registry import SOURCES

if TYPE_CHECKING:
    from megatape.data.records import RecordCounts
    from megatape.data.sources.source import Source
    from megatape.data.tokenizer import Tokenizer

MOST = 2**31 - 1  # bytes of a record, nodes, seconds, ...


def add_config(parser: argparse.ArgumentParser) -> None:
    """--config and --set, for `read_config`."""
    parser.add_argument("--config", required=True, metavar="FILE", help="JSON configuration (docs/config.md)")
    add_import(parser)
    add_overrides(parser)


class _Import(argparse.Action):
    """Imports a module as soon as it is read, before arguments that follow are looked up in megatape/registry.py."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        imports.import_given(values)


def add_import(parser: argparse.ArgumentParser) -> None:
    """--import of commands that read a configuration, a run, a checkpoint or an export."""
    parser.add_argument(
        imports.OPTION,
        action=_Import,
        dest="",
        default=argparse.SUPPRESS,
        metavar="MODULE",
        help="import a module of your own, or a .py file, that registers encodings, optimizers, sinks or others; repeatable",
    )


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """--set."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one configuration value; repeatable"
    )


def read_config(args: argparse.Namespace) -> Config:
    """Load the configuration that --config and --set describe. Raises FileNotFoundError or UserError."""
    return load_config(args.config, args.set)


def check_config(args: argparse.Namespace) -> None:
    """Report errors in --config before the command imports torch. Raises FileNotFoundError or UserError."""
    if args.config is not None:
        load_config(args.config)


def add_launched(parser: argparse.ArgumentParser) -> None:
    """Arguments of commands that a launcher starts on every rank."""
    parser.add_argument("--verbose", action="store_true", help="show DeepSpeed's full log, not only its errors")
    add_local_rank(parser)


def add_local_rank(parser: argparse.ArgumentParser) -> None:
    """--local_rank, which the deepspeed launcher adds. It is ignored: LOCAL_RANK in the environment says the same."""
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)


def prepare_deepspeed(verbose: bool = False) -> None:
    """Check what DeepSpeed reads from the environment while it is imported, and unless `verbose` reduce its log to errors.

    Raises:
        UserError: As `limits_of_environment`.
    """
    from megatape.runtime.limits import limits_of_environment

    limits_of_environment()
    if not verbose:
        logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)


def add_source(parser: argparse.ArgumentParser) -> None:
    """--source, --input and what else says where documents come from, for `read_source`."""
    from megatape.data.limits import MAX_BAD_FRACTION

    add_import(parser)
    parser.add_argument("--source", required=True, choices=SOURCES, help="type of source (docs/data.md)")
    parser.add_argument("--input", nargs="+", default=[], help="files, folders and URLs; for hub, the name of a dataset")
    parser.add_argument("--subset", help="configuration of a hub dataset")
    parser.add_argument("--split", default="train", help="split of a hub dataset (default %(default)s)")
    parser.add_argument(
        "--text-field", default="text", metavar="NAME", help="field of records that has the text (default %(default)s)"
    )
    parser.add_argument(
        "--max-bad-fraction",
        type=float,
        default=MAX_BAD_FRACTION,
        metavar="P",
        help="end if more of the records are malformed or too long (default %(default)s)",
    )
    add_record_limit(parser)


def read_source(args: argparse.Namespace, **more: Any) -> "Source":
    """The source that the arguments of `add_source` describe. more: other fields of it. Raises UserError."""
    from megatape.data.sources.source import Source

    return Source(
        args.source,
        tuple(args.input),
        args.subset,
        max_record_bytes=args.max_record_bytes,
        text_field=args.text_field,
        split=args.split,
        max_bad_fraction=args.max_bad_fraction,
        **more,
    )


def add_record_limit(parser: argparse.ArgumentParser) -> None:
    """--max-record-bytes of commands that read lines of JSON."""
    from megatape.data.limits import MAX_RECORD_BYTES

    parser.add_argument(
        "--max-record-bytes",
        type=positive,
        default=MAX_RECORD_BYTES,
        metavar="N",
        help="skip longer lines and text files (default %(default)s; memory grows with it)",
    )


def add_validation_share(parser: "argparse._ActionsContainer", of: str) -> None:
    """--validation-share of commands that split what they read. of: what it is a fraction of."""
    parser.add_argument(
        "--validation-share",
        type=float,
        default=0.02,
        metavar="P",
        help=f"fraction of {of} in the validation split (default %(default)s)",
    )


def read_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer that --tokenizer names; warns if models that train with it cannot be exported. Raises FileNotFoundError or
    ValueError."""
    from megatape.data.tokenizer_files import load_tokenizer
    from megatape.hf.tokenizer import special_tokens

    tokenizer = load_tokenizer(path)
    try:
        special_tokens(tokenizer)
    except ValueError as fault:
        print(f"warning: a model trained on this data cannot be exported. {fault}", file=sys.stderr)
    return tokenizer


def report_skipped(counts: "RecordCounts", max_record_bytes: int) -> None:
    """Print which records were skipped, if any."""
    if counts.too_long:
        print(
            f"skipped {counts.too_long:,} records longer than {max_record_bytes:,} bytes (raise --max-record-bytes to "
            f"keep them), the first one: {counts.first_too_long}"
        )
    if counts.bad:
        print(f"skipped {counts.bad:,} bad records, the first ones:", *counts.bad_examples, sep="\n  ")


def add_new_data(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """--output of commands that write a data directory."""
    parser.add_argument("--output", required=required, type=Path, metavar="FOLDER", help="data directory to write")


@contextmanager
def token_bar(what: str) -> Iterator[Callable[[int], None]]:
    """A progress bar of the tokens that are done; gives what to call with their number."""
    from tqdm import tqdm

    with tqdm(desc=what, unit=" tokens", unit_scale=True, delay=0.5) as bar:

        def show(tokens: int) -> None:
            bar.update(tokens - bar.n)

        yield show


def positive(text: str) -> int:
    """argparse type of positive integers that an operating system can count with."""
    number = int(text)
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"{text}: give at least 1" if number < 1 else f"{text}: give at most {MOST}")
    return number


def add_models(parser: argparse.ArgumentParser) -> None:
    """Models that a study examines: checkpoints, or, with --random, a configuration's model with several encodings."""
    parser.add_argument(
        "checkpoints", nargs="*", type=Path, metavar="CHECKPOINT", help="folder such as checkpoints/step-00000100"
    )
    add_import(parser)
    parser.add_argument("--random", action="store_true", help="use random weights instead of checkpoints")
    parser.add_argument("--config", metavar="FILE", help="with --random: configuration of the model and its sequence length")
    parser.add_argument(
        "--encodings",
        metavar="A,B",
        help="with --random: encodings to examine (default: rope,tape,tape_vector,tape_no_equivariance)",
    )
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="sequences to average over (default %(default)s)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens per sequence (default: data.sequence_length)")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="data directory of the text (default: the checkpoint's data.path)"
    )


def add_runs(parser: argparse.ArgumentParser) -> None:
    """--out, --jobs and --launcher of studies that train."""
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder for the runs, the table and the plot")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="runs in parallel (default %(default)s)")
    parser.add_argument("--launcher", metavar="COMMAND", help='launcher for each run, such as "deepspeed --num_accelerators 8"')


def add_base(parser: argparse.ArgumentParser) -> None:
    """--base: where the frozen weights are that a checkpoint leaves out."""
    parser.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="of a checkpoint that holds only what was trained: where its base is, if it moved (docs/finetune.md)",
    )


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """--adapter: an adapter to merge into the model before it is run."""
    parser.add_argument(
        "--adapter",
        type=Path,
        metavar="DIR",
        help="adapter that `megatape export --adapter` wrote, to merge into the model that it was trained on",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add --trust-remote-code. Without it nothing in a model folder is run."""
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python files in MODEL_DIR: for models that `megatape export` did not write",
    )
