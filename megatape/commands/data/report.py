"""megatape data report: `megatape data report runs/data/c4 --verify --output runs/data_report`."""

from pathlib import Path

from megatape.utils.options import CommandOptions, option
from megatape.utils.tables import columns


class Options(CommandOptions):
    """A data directory, and what is reported of it.

    Attributes:
        directory: data directory
        verify: verify the hash of every member of every shard
        output: new folder for the same as a page, index.html
    """

    directory: Path = option(positional=True, metavar="FOLDER")
    verify: bool = False
    output: Path | None = option(None, metavar="DIR")


def run(options: Options) -> None:
    """Print the report."""
    from megatape.data.finetuning.preview import describe_examples
    from megatape.data.printable import printable, printable_lines
    from megatape.data.shards.contents import read_contents
    from megatape.data.shards.document_tables import DocumentTables
    from megatape.data.shards.reader import SplitReader
    from megatape.lab.report.data_page import data_tables, write_data_report

    directory = options.directory
    contents = read_contents(directory)
    for caption, table in data_tables(contents).items():
        print(f"{caption}\n{columns([[label, *cells] for label, cells in table.rows], table.header)}\n")
    for sample in contents.samples:
        title = ", ".join(filter(None, [sample.split, printable(sample.place), printable(sample.url)]))
        print(title, printable_lines(sample.text), "", sep="\n")
    if contents.index.answers:
        print(*describe_examples(directory, contents.index), sep="\n")
    if options.verify:
        for name in contents.index.splits:
            members = sum(1 for _ in SplitReader(directory, contents.index, name).members())
            print(f"{name}: {members} members verified")
            if name in contents.index.document_tables:
                list(DocumentTables(directory, contents.index, name).isolate().each())
    if options.output:
        print(f"wrote {write_data_report(contents, options.output)}")
