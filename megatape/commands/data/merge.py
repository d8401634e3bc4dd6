"""Merges data directories with the same tokenizer."""

from pathlib import Path

from megatape.commands.cli.data_messages import report_written, token_bar
from megatape.utils.values.options import CommandOptions, Count, option

EXAMPLE = "megatape data merge data/all data/web data/code"


class Options(CommandOptions):
    """Data directories with the same tokenizer, and the data directory to write.

    Attributes:
        output: data directory to write
        folders: data directories to merge, in order
        append: append the documents to OUT, an existing data directory
        shard_tokens: write new shards of at most N tokens, rounded down to a multiple of 524,288 if N is
            larger (default: link the existing shards)
    """

    at_most_one = (("append", "shard_tokens"),)

    output: Path = option(positional=True, metavar="OUT")
    folders: tuple[Path, ...] = option(positional=True, metavar="FOLDER")
    append: bool = False
    shard_tokens: Count | None = option(None, metavar="N")


def run(options: Options) -> None:
    """Write the data directory, or append to it."""
    from megatape.data.derived.append import append
    from megatape.data.derived.merge import merge

    with token_bar("read") as bar:
        if options.append:
            index = append(options.folders, options.output, bar.update)
        else:
            index = merge(options.folders, options.output, options.shard_tokens, bar.update)
    report_written(index, options.output)
