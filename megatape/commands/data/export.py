"""Converts a data directory to another system's token files."""

from pathlib import Path

from megatape.commands.cli.data_messages import token_bar
from megatape.commands.options.data_options import DataDirectoryOptions, TokenFormatOptions
from megatape.utils.text.units import plural
from megatape.utils.values.options import option

EXAMPLE = "megatape data export data/c4 --format megatron --output FOLDER"


class Options(TokenFormatOptions, DataDirectoryOptions):
    """A data directory, and the token files to write.

    Attributes:
        output: folder to write, with the files of each split and the tokenizer
    """

    output: Path = option(metavar="OUT")


def run(options: Options) -> None:
    """Write the files."""
    from megatape.data.formats.exporting import export_data

    with token_bar("exported") as bar:
        index = export_data(options.directory, options.format, options.output, bar.update)
    for name, split in index.splits.items():
        documents = plural(split.documents, "document")
        tokens = plural(split.tokens, "token")
        print(f"{name}: {documents}, {tokens}")
    print(f"wrote {options.output}")
