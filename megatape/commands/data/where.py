"""Shows the document that contains a token."""

from typing import Literal

from megatape.commands.options.data_options import DataDirectoryOptions
from megatape.utils.values.options import option

EXAMPLE = "megatape data where runs/data/c4 --split train --token 12345"

# Number of tokens to show before and after the token.
CONTEXT_TOKENS = 64


class Options(DataDirectoryOptions):
    """A document in a data directory, given by its number or by one of its tokens.

    Attributes:
        split: split of the document
        token: number of a token in the split, counted from 0
        document: number of a document in the split, counted from 0
    """

    exactly_one = (("token", "document"),)

    split: Literal["train", "validation"] = "train"
    token: int | None = option(None, metavar="N")
    document: int | None = option(None, metavar="N")


def run(options: Options) -> None:
    """Print the document, and the text around the token or at the beginning of the document."""
    from megatape.data.printable import printable, printable_lines
    from megatape.data.shards.stored_split import StoredSplit

    split = StoredSplit(options.directory, options.split)
    tables = split.tables.isolate()
    if options.token is not None:
        document = tables.find(options.token)
        token = options.token
    else:
        document = tables.document(options.document or 0)
        token = document.first
    tokenizer = split.tokenizer()
    begin = max(document.first, token - CONTEXT_TOKENS)
    end = min(document.first + document.tokens, token + 1 + CONTEXT_TOKENS)
    text = tokenizer.decode(split.stream(begin, end))
    token_id = split.stream(token, token + 1)
    length = f"{document.bytes:,} bytes, {document.tokens:,} tokens from {document.first:,} on"
    print(f"document:  {document.number:,} of {options.split}, {length}")
    print(f"location:  {printable(document.location)}")
    print(f"url:       {printable(document.url) or 'unknown'}")
    if document.scores:
        print(f"scores:    {printable(document.scores)}")
    print(f"token:     {token - document.first:,} of the document, id {token_id[0]}, {tokenizer.decode(token_id)!r}")
    print(f"text of tokens {begin:,} to {end - 1:,}:")
    print(printable_lines(text))
