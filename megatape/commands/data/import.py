"""Converts another system's token files to a data directory."""  # noqa: N999

from pathlib import Path

from megatape.commands.cli.data_messages import report_unexportable, report_written, token_bar
from megatape.commands.options.data_options import HeldOutOptions, NewDataOptions, TokenFormatOptions
from megatape.utils.text.units import plural
from megatape.utils.values.options import option

EXAMPLE = "megatape data import --format megatron --input PREFIX --tokenizer PATH --output FOLDER"


class Options(TokenFormatOptions, NewDataOptions, HeldOutOptions):
    """Token files of another system, and the data directory to write.

    Attributes:
        input: files to read, in order
        validation: files of the validation split
        tokenizer: tokenizer that produced the token ids
        append_eos: add the end token to documents (mds: samples) that lack it
    """

    at_most_one = (("validation", "validation_share"),)

    input: tuple[Path, ...] = option(metavar="PATH")
    validation: tuple[Path, ...] = option((), metavar="PATH")
    tokenizer: Path = option(metavar="PATH")
    append_eos: bool = False


def run(options: Options) -> None:
    """Write the data directory."""
    from megatape.data.formats.importing import TokenFiles, import_data
    from megatape.data.tokenizers.files import load_tokenizer

    files = TokenFiles(
        format=options.format,
        inputs=options.input,
        validation=options.validation,
        validation_share=options.validation_share,
        append_eos=options.append_eos,
    )
    tokenizer = load_tokenizer(options.tokenizer)
    report_unexportable(tokenizer)
    with token_bar("imported") as bar:
        index, counts = import_data(files, options.output, tokenizer, bar.update)
    if counts.empty:
        print(f"skipped {plural(counts.empty, 'empty document')}")
    if counts.unfinished:
        print(f"{counts.unfinished:,} inputs end within a document, to which the end token was added")
    num_without_begin = counts.written - counts.begun
    if num_without_begin:
        print(
            f"note: {num_without_begin:,} of {counts.written:,} documents do not begin with token {tokenizer.bos_id}, "
            "with which this tokenizer begins prompts"
        )
    report_written(index, options.output)
