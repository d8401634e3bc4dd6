"""megatape data where: `megatape data where runs/data/c4 --split train --token 12345`."""

from pathlib import Path
from typing import Literal

from megatape.utils.options import CommandOptions, option

# Number of tokens to show before and after the place.
CONTEXT_TOKENS = 64


class Options(CommandOptions):
    """A document of a data directory, by its number or by one of its tokens.

    Attributes:
        directory: data directory
        split: split of the document
        token: one of its tokens, counted from 0 in the split
        document: its number, counted from 0 in the split
    """

    exactly_one = (("token", "document"),)

    directory: Path = option(positional=True, metavar="FOLDER")
    split: Literal["train", "validation"] = "train"
    token: int | None = option(None, metavar="N")
    document: int | None = option(None, metavar="N")


def run(options: Options) -> None:
    """Print the document."""
    from megatape.data.printable import printable, printable_lines
    from megatape.data.shards.stored_split import StoredSplit

    split = StoredSplit(options.directory, options.split)
    tables = split.tables.isolate()
    if options.token is not None:
        found = tables.find(options.token)
        place = options.token
    else:
        found = tables.document(options.document or 0)
        place = found.first
    tokenizer = split.tokenizer()
    begin = max(found.first, place - CONTEXT_TOKENS)
    end = min(found.first + found.tokens, place + 1 + CONTEXT_TOKENS)
    ids = split.stream(begin, end)
    text = tokenizer.decode(ids)
    token = split.stream(place, place + 1)
    length = f"{found.bytes:,} bytes, {found.tokens:,} tokens from {found.first:,} on"
    print(f"document:  {found.number:,} of {options.split}, {length}")
    print(f"place:     {printable(found.place)}")
    print(f"url:       {printable(found.url) or 'unknown'}")
    if found.scores:
        print(f"scores:    {printable(found.scores)}")
    print(f"token:     {place - found.first:,} of the document, id {token[0]}, {tokenizer.decode(token)!r}")
    print(f"text of tokens {begin:,} to {end - 1:,}:")
    print(printable_lines(text))
