"""Arguments that several commands have."""

import argparse
import logging
from pathlib import Path

from megatape.config import Config, load_config


def add_config(parser: argparse.ArgumentParser) -> None:
    """--config and --set, which `read_config` reads."""
    parser.add_argument("--config", required=True, metavar="FILE", help="JSON configuration (docs/config.md)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one value; repeatable"
    )


def read_config(args: argparse.Namespace) -> Config:
    """The configuration of --config and --set. Raises FileNotFoundError or ValueError."""
    return load_config(args.config, args.set)


def check_config(args: argparse.Namespace) -> None:
    """Raise FileNotFoundError or ValueError for a --config with a fault, before what uses it imports torch."""
    if args.config is not None:
        load_config(args.config)


def add_launched(parser: argparse.ArgumentParser) -> None:
    """What commands have that a launcher starts on every rank."""
    parser.add_argument("--verbose", action="store_true", help="show DeepSpeed's log too, not only its errors")
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # the deepspeed launcher adds it; the environment has it too


def silence_deepspeed() -> None:
    """Keep what is no error out of DeepSpeed's log. Works before DeepSpeed is imported, which is when it starts to talk."""
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)


def add_source(parser: argparse.ArgumentParser) -> None:
    """Where documents come from: --source, --input, --subset."""
    from megatape.data.corpus import KINDS

    parser.add_argument("--source", required=True, choices=KINDS, help="kind of source (docs/data.md)")
    parser.add_argument("--input", nargs="+", default=[], help="files or folders; for hub a data set name")
    parser.add_argument("--subset", help="configuration of a hub data set")


def add_new_data(parser: argparse.ArgumentParser) -> None:
    """--output of a command that writes a data directory."""
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="data directory to write")


def positive(text: str) -> int:
    """Type of an argument that is a whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1 is expected")
    return number


def add_models(parser: argparse.ArgumentParser) -> None:
    """What a study looks at: checkpoints, or with --random a configuration's model with several encodings."""
    parser.add_argument(
        "checkpoints", nargs="*", type=Path, metavar="CHECKPOINT", help="folder such as checkpoints/step-00000100"
    )
    parser.add_argument("--random", action="store_true", help="random weights instead of checkpoints")
    parser.add_argument("--config", metavar="FILE", help="with --random: the model's shape and length")
    parser.add_argument("--encodings", metavar="A,B", help="with --random: default rope,tape,tape_vector,tape_no_equivariance")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="sequences to average over (default 8)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sequence (default: as trained)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="validation text (default: the checkpoint's data.path)")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """--trust-remote-code, without which nothing in a model folder is run."""
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python files in MODEL_DIR: for models that `megatape export` did not write",
    )
