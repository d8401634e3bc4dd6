"""The paper's studies (docs/studies.md), each with a table or a picture.

python launch/study.py efficiency --encodings rope,tape,fire --layers 4 --length 512
python launch/study.py shift runs/rope/checkpoints/step-00000500 runs/tape/checkpoints/step-00000500
python launch/study.py shift --random --config configs/tape_tiny.json --encodings rope,tape,tape_vector,tape_no_equivariance
python launch/study.py attention runs/rope/checkpoints/step-00000500 runs/tape/checkpoints/step-00000500 --out patterns.png
python launch/study.py compare --config configs/tape_tiny.json --encodings rope,tape,fire --seeds 3 --out runs/compared
"""

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    _efficiency_arguments(commands.add_parser("efficiency", help="parameters, operations, memory and time of every encoding"))
    shift = commands.add_parser("shift", help="what added tokens and shifted position ids change")
    _model_arguments(shift)
    shift.add_argument("--shift", type=int, default=3, metavar="S", help="tokens added, and first position id (default 3)")
    attention = commands.add_parser("attention", help="picture of the position tensors' dot products and of attention")
    _model_arguments(attention)
    attention.add_argument("--out", type=Path, required=True, metavar="FILE.png", help="picture to write")
    _compare_arguments(commands.add_parser("compare", help="train several encodings and seeds, one table and picture"))
    return parser.parse_args()


def _efficiency_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="measure this file's model (default: the paper's 155M)")
    parser.add_argument("--layers", type=int, metavar="N", help="instead of the model's")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sequence (default: the file's, or 1024)")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="sequences (default 1)")
    parser.add_argument("--encodings", metavar="A,B", help="default: all")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of timing, after one to warm up (default 5)")


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoints", nargs="*", type=Path, metavar="CHECKPOINT", help="folder such as checkpoints/step-00000100"
    )
    parser.add_argument("--random", action="store_true", help="random weights instead of checkpoints")
    parser.add_argument("--config", metavar="FILE", help="with --random: the model's shape and length")
    parser.add_argument("--encodings", metavar="A,B", help="with --random: default rope,tape,tape_vector,tape_no_equivariance")
    parser.add_argument("--samples", type=int, default=8, metavar="N", help="sequences to average over (default 8)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a sequence (default: as trained)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="validation text (default: the checkpoint's data.path)")


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="what is trained, but for the encoding")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="override one value; repeatable"
    )
    parser.add_argument(
        "--encodings", required=True, metavar="A,B", help="such as rope,tape,tape+yarn,tape:position_size=12 (docs/studies.md)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="S", help="runs of each (default 3)")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="of all runs, the table and the picture")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="runs at a time (default 1)")
    parser.add_argument(
        "--launcher", metavar="COMMAND", help='what starts launch/pretrain.py, such as "deepspeed --num_accelerators 8"'
    )


def main() -> int:
    args = arguments()
    try:
        for paragraph in STUDIES[args.command](args):
            print(paragraph + "\n", flush=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def efficiency(args: argparse.Namespace) -> Iterator[str]:
    from megatape.study.efficiency import study

    return study(args.config, args.layers, args.length, args.batch, args.encodings, args.rounds)


def shift(args: argparse.Namespace) -> Iterator[str]:
    from megatape.study.shift import report
    from megatape.study.subjects import load_subjects

    subjects = load_subjects(args.checkpoints, args.random, args.config, args.encodings, args.data, args.samples, args.length)
    return report(subjects, args.shift)


def attention(args: argparse.Namespace) -> Iterator[str]:
    with _plots():
        from megatape.study.patterns import draw
    from megatape.study.subjects import load_subjects

    subjects = load_subjects(args.checkpoints, args.random, args.config, args.encodings, args.data, args.samples, args.length)
    return draw(subjects, args.out)


def compare(args: argparse.Namespace) -> Iterator[str]:
    with _plots():
        from megatape.study.compare import RunsFailed, compare
    pretrain = Path(__file__).parent / "pretrain.py"
    command = f"python launch/study.py {shlex.join(sys.argv[1:])}"
    try:
        yield from compare(
            args.config, args.set, args.encodings, args.seeds, args.out, args.jobs, args.launcher, pretrain, command
        )
    except RunsFailed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)


@contextmanager
def _plots() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}: pictures need matplotlib, pip install -c constraints.txt -e .[plots]") from None


STUDIES = {"efficiency": efficiency, "shift": shift, "attention": attention, "compare": compare}

if __name__ == "__main__":
    sys.exit(main())
