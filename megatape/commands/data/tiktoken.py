"""megatape data tiktoken: megatape data tiktoken cl100k_base.tiktoken --output cl100k"""

import argparse
from pathlib import Path

from megatape.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="ranks, as tiktoken keeps them")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="folder of transformers to write")
    parser.add_argument(
        "--encoding", metavar="NAME", help="r50k_base, cl100k_base, o200k_base, llama3 or qwen (default: the name of FILE)"
    )
    parser.add_argument("--pattern", metavar="REGEX", help="of any other encoding: the words into which it splits texts")
    parser.add_argument("--eos", metavar="TEXT", help="with --pattern: the end token, whose id follows the last rank")


def run(args: argparse.Namespace) -> int:
    """Write the folder."""
    from megatape.data.documents import store_tokenizer
    from megatape.data.tokenizer_tiktoken import ENCODINGS, Encoding, convert
    from megatape.files import new_folder

    name = args.encoding or args.file.stem
    if (args.pattern is None) != (args.eos is None) or (args.pattern and args.encoding):
        raise UserError("give --encoding, or --pattern and --eos")
    if not args.pattern and name not in ENCODINGS:
        raise UserError(
            f"encoding {name!r} is unknown, and {args.file} does not say how it splits texts: give --encoding, one of "
            f"{', '.join(ENCODINGS)}, or --pattern and --eos"
        )
    encoding = Encoding(args.pattern, {}, args.eos) if args.pattern else ENCODINGS[name]
    with new_folder(args.output) as folder:
        tokenizer = convert(args.file, encoding)
        store_tokenizer(tokenizer, folder)
    print(f"wrote {args.output}: {tokenizer.vocab_size:,} ids, documents end with {args.eos or encoding.eos}")
    return 0
