"""megatape data import: `megatape data import --format megatron --input PREFIX --tokenizer PATH --output FOLDER`."""  # noqa: N999

from pathlib import Path

from megatape.commands.data.messages import read_tokenizer, report_written, token_bar
from megatape.commands.data.options import HeldOutOptions, NewDataOptions, TokenFormat
from megatape.utils.options import option
from megatape.utils.units import plural


class Options(NewDataOptions, HeldOutOptions):
    """Token files of another system, and the data directory to make of them.

    Attributes:
        input: files to read, in order
        validation: files of the validation split
        tokenizer: tokenizer that made the ids
        append_eos: documents (samples of mds) have no end token: add it to those without
    """

    at_most_one = (("validation", "validation_share"),)

    format: TokenFormat
    input: tuple[Path, ...] = option(metavar="PATH")
    validation: tuple[Path, ...] = option((), metavar="PATH")
    tokenizer: Path = option(metavar="PATH")
    append_eos: bool = False


def run(options: Options) -> None:
    """Write the data directory."""
    from megatape.data.formats.importing import TokenFiles, import_data

    files = TokenFiles(
        format=options.format,
        inputs=options.input,
        validation=options.validation,
        validation_share=options.validation_share,
        append_eos=options.append_eos,
    )
    tokenizer = read_tokenizer(options.tokenizer)
    with token_bar("imported") as bar:
        index, counts = import_data(files, options.output, tokenizer, bar.update)
    if counts.empty:
        print(f"skipped {plural(counts.empty, 'empty document')}")
    if counts.unfinished:
        print(f"{counts.unfinished:,} inputs end within a document, to which the end token was added")
    if counts.begun < counts.written:
        print(
            f"note: {counts.written - counts.begun:,} of {counts.written:,} documents do not begin with token "
            f"{tokenizer.bos_id}, with which this tokenizer begins prompts"
        )
    report_written(index, options.output)
