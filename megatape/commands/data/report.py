"""Prints a summary of a data directory, or writes it as a page."""

from pathlib import Path
from typing import TYPE_CHECKING

from megatape.commands.options.data_options import DataDirectoryOptions
from megatape.utils.text.tables import columns
from megatape.utils.values.options import option

if TYPE_CHECKING:
    from megatape.data.shards.entries import Index

EXAMPLE = "megatape data report runs/data/c4 --verify --output runs/data_report"


class Options(DataDirectoryOptions):
    """A data directory, and the contents of its report.

    Attributes:
        verify: also verify the hash of every member of every shard
        output: also write the report as a page: new folder for its index.html
    """

    verify: bool = False
    output: Path | None = option(None, metavar="DIR")


def run(options: Options) -> None:
    """Print the report."""
    from megatape.data.finetuning.preview import describe_examples
    from megatape.data.printable import printable, printable_lines
    from megatape.data.shards.contents import read_contents
    from megatape.lab.report.data_page import data_tables, write_data_report

    directory = options.directory
    contents = read_contents(directory)
    for caption, table in data_tables(contents).items():
        rows = [[label, *cells] for label, cells in table.rows]
        print(caption)
        print(columns(rows, table.header))
        print()
    for sample in contents.samples:
        titles = [sample.split, printable(sample.location), printable(sample.url)]
        print(", ".join(title for title in titles if title))
        print(printable_lines(sample.text))
        print()
    if contents.index.answers:
        for line in describe_examples(directory, contents.index):
            print(line)
    if options.verify:
        _verify(directory, contents.index)
    if options.output is not None:
        page = write_data_report(contents, options.output)
        print(f"wrote {page}")


def _verify(directory: Path, index: "Index") -> None:
    """Read all members of all shards and all document tables, which verifies their hashes."""
    from megatape.data.shards.reading.reader import SplitReader
    from megatape.data.shards.tables.document_tables import DocumentTables

    for name in index.splits:
        num_members = 0
        for _ in SplitReader(directory, index, name).members():
            num_members += 1
        print(f"{name}: {num_members} members verified")
        if name in index.document_tables:
            tables = DocumentTables(directory, index, name).isolate()
            for _ in tables.each():
                pass
