"""megatape data export: `megatape data export data/c4 --format megatron --output FOLDER`."""

from pathlib import Path

from megatape.commands.data.messages import token_bar
from megatape.commands.data.options import TokenFormat
from megatape.utils.options import CommandOptions, option
from megatape.utils.units import plural


class Options(CommandOptions):
    """A data directory, and the form of its copy.

    Attributes:
        directory: data directory
        output: folder to write: train, validation, and the tokenizer
    """

    directory: Path = option(positional=True, metavar="FOLDER")
    format: TokenFormat
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
