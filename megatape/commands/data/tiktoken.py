"""megatape data tiktoken: `megatape data tiktoken cl100k_base.tiktoken --output cl100k`."""

from pathlib import Path

from megatape.errors import UserError
from megatape.options import CommandOptions, option


class Options(CommandOptions):
    """A file of tiktoken, and how its encoding splits texts.

    Attributes:
        file: ranks in tiktoken's format
        output: folder of transformers to write
        encoding: r50k_base, cl100k_base or o200k_base (default: the name of FILE)
        pattern: of any other encoding: the words into which it splits texts
        eos: with --pattern: the end token, whose id follows the last rank
    """

    file: Path = option(positional=True, metavar="FILE")
    output: Path = option(metavar="FOLDER")
    encoding: str | None = option(None, metavar="NAME")
    pattern: str | None = option(None, metavar="REGEX")
    eos: str | None = option(None, metavar="TEXT")


def run(options: Options) -> None:
    """Write the folder."""
    from megatape.data.shards.index import store_tokenizer
    from megatape.data.tokenizers.tiktoken import ENCODINGS, Encoding, convert
    from megatape.files import new_folder

    name = options.encoding or options.file.stem
    if (options.pattern is None) != (options.eos is None) or (options.pattern and options.encoding):
        raise UserError("give `encoding`, or `pattern` and `eos`")
    if not options.pattern and name not in ENCODINGS:
        raise UserError(
            f"encoding {name!r} is unknown, and {options.file} does not say how it splits texts: give `encoding`, one of "
            f"{', '.join(ENCODINGS)}, or `pattern` and `eos`"
        )
    encoding = Encoding(options.pattern, {}, options.eos) if options.pattern and options.eos else ENCODINGS[name]
    with new_folder(options.output) as folder:
        tokenizer = convert(options.file, encoding)
        store_tokenizer(tokenizer, folder)
    print(f"wrote {options.output}: {tokenizer.vocab_size:,} ids, documents end with {options.eos or encoding.eos}")
