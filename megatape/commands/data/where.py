"""megatape data where: `megatape data where runs/data/c4 --split train --token 12345`."""

from pathlib import Path
from typing import Literal

from megatape.options import CommandOptions, option

TEXT_TOKENS = 64  # shown on either side


class Options(CommandOptions):
    """A token of a data directory."""

    directory: Path = option("data directory", positional=True, metavar="FOLDER")
    split: Literal["train", "validation"] = option("split of the token", "train")
    token: int = option("token of the split, counted from 0", metavar="N")


def run(options: Options) -> int:
    """Print the document."""
    from megatape.data.shards.document_table import DocumentTables
    from megatape.data.shards.index import load_index
    from megatape.data.shards.stored_split import StoredSplit

    index = load_index(options.directory)
    found = DocumentTables(options.directory, index, options.split).find(options.token)
    split = StoredSplit(options.directory, options.split)
    tokenizer = split.tokenizer()
    begin, end = max(found.first, options.token - TEXT_TOKENS), min(found.first + found.tokens, options.token + 1 + TEXT_TOKENS)
    ids, token = split.stream(begin, end), split.stream(options.token, options.token + 1)
    length = f"{found.bytes:,} bytes, {found.tokens:,} tokens from {found.first:,} on"
    print(f"document:  {found.number:,} of {options.split}, {length}")
    print(f"place:     {found.place}")
    print(f"url:       {found.url or 'unknown'}")
    print(f"token:     {options.token - found.first:,} of the document, id {token[0]}, {tokenizer.decode(token)!r}")
    print(f"text of tokens {begin:,} to {end - 1:,}:", tokenizer.decode(ids), sep="\n")
    return 0
