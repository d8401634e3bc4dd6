"""Converts a tiktoken file to a tokenizer.json."""

from pathlib import Path

from megatape.errors import UserError, flag
from megatape.errors.suggestions import choose_one
from megatape.utils.values.options import CommandOptions, option

EXAMPLE = "megatape data tiktoken cl100k_base.tiktoken --output cl100k"


class Options(CommandOptions):
    """A tiktoken file, and its encoding.

    Attributes:
        file: tiktoken file with the ranks of the tokens
        output: tokenizer folder to write, in transformers' format
        encoding: r50k_base, cl100k_base or o200k_base (default: the name of FILE)
    """

    file: Path = option(positional=True, metavar="FILE")
    output: Path = option(metavar="FOLDER")
    encoding: str | None = option(None, metavar="NAME")


def run(options: Options) -> None:
    """Convert the file, and write the tokenizer folder."""
    from megatape.data.shards.index import store_tokenizer
    from megatape.data.tokenizers.tiktoken import ENCODINGS, END, convert
    from megatape.utils.files.atomic import new_folder

    name = options.encoding or options.file.stem
    if name not in ENCODINGS:
        raise UserError(
            f"{flag('encoding')} {name!r} is unknown, and {options.file} does not say how it splits texts: "
            f"{choose_one(name, ENCODINGS)}, or use the tokenizer.json of the model"
        )
    with new_folder(options.output) as folder:
        tokenizer = convert(options.file, ENCODINGS[name])
        store_tokenizer(tokenizer, folder)
    print(f"wrote {options.output}: {tokenizer.vocab_size:,} ids, documents end with {END}")
