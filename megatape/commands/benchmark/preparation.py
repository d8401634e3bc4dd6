"""Compares the speed of data preparation with its tokenizer's."""

from pathlib import Path

from megatape.commands.cli.data_messages import report_unexportable
from megatape.commands.cli.output import print_paragraphs
from megatape.commands.options.data_options import SourceOptions
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape benchmark preparation --source python"


class Options(SourceOptions):
    """Texts to prepare, and their tokenizer.

    Attributes:
        tokenizer: tokenizer to measure (default: train one on the source)
        vocab_size: vocabulary size to train
        megabytes: text size; the source's first documents are used
        rounds: timing rounds
    """

    at_most_one = (("tokenizer", "vocab_size"),)

    tokenizer: Path | None = option(None, metavar="PATH")
    vocab_size: int = option(16_000, metavar="N")
    megabytes: Count = option(20, metavar="N")
    rounds: Count = option(3, metavar="N")


def run(options: Options) -> None:
    """Measure the CPU time of preparing text and of tokenizing alone, and print tables."""
    from megatape.data.tokenizers.files import load_tokenizer
    from megatape.lab.benchmark.data.preparation import report

    tokenizer = None
    if options.tokenizer:
        tokenizer = load_tokenizer(options.tokenizer)
        report_unexportable(tokenizer)
    source = options.read_source()
    print_paragraphs(report(source, tokenizer, options.vocab_size, options.megabytes, options.rounds))
