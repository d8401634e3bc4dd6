"""Tokenizes a corpus into the shards of a data directory."""

import os
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, NoReturn

from pydantic import Field

from megatape.commands.cli.data_messages import report_skipped, report_unexportable, report_written
from megatape.commands.options.data_options import HeldOutOptions, SourceOptions
from megatape.commands.options.shared_options import descriptions
from megatape.errors import UserError, flag
from megatape.registry import RULES
from megatape.utils.text.units import plural
from megatape.utils.text.url_secrets import mask_secrets
from megatape.utils.values.options import Count, option

if TYPE_CHECKING:
    from tqdm import tqdm

    from megatape.data.cleaning.decisions import Cleaning
    from megatape.data.prepare.progress import Progress
    from megatape.data.shards.entries import Index
    from megatape.data.sources.source import Source

EXAMPLE = "megatape prepare corpus --source c4 --input FOLDER --output runs/data/c4"

# Maximum number of inputs to print document counts for.
MAX_PRINTED_INPUTS = 20


class Options(HeldOutOptions, SourceOptions):
    """A corpus, and its preparation.

    Attributes:
        output: data directory to write
        tokenizer: SentencePiece model, tokenizer.json or a folder in transformers' format (default:
            train a tokenizer on the source)
        vocab_size: vocabulary size of the tokenizer to train
        validation_input: files, folders and URLs of the validation split
        max_documents: stop after N documents
        keep_duplicates: keep documents that equal an earlier one
        keep_documents: also write the texts after cleaning, and dropped texts with the reasons, to
            read them with --source documents
        dry_run: write nothing; show the effect of cleaning on the first N documents (1000 if N is
            not given), and the speed of each rule
        core_hour_price: price of a core hour in any currency, to print what cleaning the whole
            input would cost, with --dry-run
        workers: number of processes (default: one per core); other machines help if you run the
            same command there
        unit_bytes: size of the units of the input, which are distributed over processes and have
            separate shards (default: by the size of the input and --workers, at most 64 MiB)
        comparison_bytes: memory of each process for comparing documents with those of other units;
            does not change the result
        redo: file that has changed since an unfinished preparation read it: prepare its units
            again; repeatable
        task: on several machines: the share that this machine starts with, counted from 0 (default:
            by the index of a Slurm array and the rank of a launcher)
    """

    lists: ClassVar = {**SourceOptions.lists, "rules": descriptions(RULES)}
    at_most_one = (("tokenizer", "vocab_size"), ("validation_input", "validation_share"))

    output: Path | None = option(None, metavar="FOLDER")
    tokenizer: Path | None = option(None, metavar="PATH")
    vocab_size: Count = option(4096, metavar="N")
    validation_input: tuple[str, ...] = option((), metavar="PATH")
    max_documents: Count | None = option(None, metavar="N")
    keep_duplicates: bool = False
    keep_documents: bool = False
    rule: tuple[str, ...] = option(
        (),
        description="clean with a rule, see below; repeatable, applied in order (docs/clean_text.md)",
        metavar="NAME[:OPTION=VALUE,...]",
        completions=tuple(RULES),
        repeatable=True,
    )
    dry_run: Count | None = option(None, metavar="N", nargs="?", const="1000")
    core_hour_price: float | None = option(None, ge=0, metavar="PRICE")
    workers: Count | None = option(None, metavar="N")
    unit_bytes: Count | None = option(None, metavar="N")
    comparison_bytes: Annotated[int, Field(ge=2**20)] = option(4 * 2**30, metavar="N")
    redo: tuple[str, ...] = option((), metavar="NAME", repeatable=True)
    task: str | None = option(None, metavar="I/N")


def run(options: Options) -> None:
    """Write the data directory, or show the effect of cleaning."""
    from megatape.data.cleaning.decisions import Cleaning
    from megatape.data.cleaning.rule import parse_rules
    from megatape.data.prepare.dry_run import dry_run

    cleaning = Cleaning(parse_rules(options.rule), drop_duplicates=not options.keep_duplicates)
    source = options.read_source(
        max_documents=options.max_documents,
        validation=options.validation_input,
        unit_bytes=options.unit_bytes,
        fields=cleaning.needs,
    )
    if options.dry_run is not None:
        print(*dry_run(source, cleaning, options.dry_run, options.core_hour_price), sep="\n")
        return
    if options.core_hour_price is not None:
        raise UserError(f"{flag('core_hour_price')} {options.core_hour_price} belongs to {flag('dry_run')}: add it")
    if options.output is None:
        raise UserError(f"{flag('output')} is missing: name the data directory to write, or give {flag('dry_run')}")
    _prepare(options, options.output, source, cleaning)


def _prepare(options: Options, output: Path, source: "Source", cleaning: "Cleaning") -> None:
    """Write the data directory, with a progress bar, and print the counts."""
    from tqdm import tqdm

    from megatape.data.prepare.command import prepare
    from megatape.data.prepare.options import PreparationOptions
    from megatape.data.prepare.queue.task import parse_task, task_of_environment
    from megatape.data.tokenizers.files import load_tokenizer

    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = load_tokenizer(options.tokenizer)
        report_unexportable(tokenizer)
    corpus = PreparationOptions(
        source=source,
        validation_share=options.validation_share,
        tokenizer=tokenizer,
        vocab_size=options.vocab_size,
        cleaning=cleaning,
        keep_documents=options.keep_documents,
        comparison_bytes=options.comparison_bytes,
    )
    if options.task:
        task = parse_task(options.task)
    else:
        task = task_of_environment()
    workers = options.workers or os.cpu_count() or 1
    with tqdm(desc="read", unit="B", unit_scale=True, delay=0.5) as bar:
        show = partial(_show_progress, bar)
        index, counts = prepare(corpus, output, workers=workers, task=task, redo=options.redo, progress=show)
    _report_inputs(index, output)
    if counts is not None:
        report_skipped(counts, options.max_record_bytes)
    report_written(index, output)


def _show_progress(bar: "tqdm[NoReturn]", progress: "Progress") -> None:
    """Update the progress bar, which counts the bytes read."""
    seconds = max(bar.format_dict["elapsed"], 1e-3)
    documents = plural(progress.written, "document")
    tokens = plural(progress.tokens, "token")
    megabytes_per_second = progress.text_bytes / seconds / 1e6
    tokens_per_second = progress.tokens / seconds
    rates = f"{megabytes_per_second:.1f} MB/s of text, {tokens_per_second:,.0f} tokens/s"
    bar.set_postfix_str(f"{documents}, {tokens}, {rates}", refresh=False)
    bar.total = progress.total_bytes or None
    bar.update(progress.read_bytes - bar.n)


def _report_inputs(index: "Index", output: Path) -> None:
    """Print the numbers of documents that were read, written and dropped, by input."""
    for name, documents in islice(index.ledger.items(), MAX_PRINTED_INPUTS):
        read = plural(documents.read, "document")
        line = f"{mask_secrets(name)}: {read} read, {documents.written:,} written"
        for reason, count in documents.dropped.items():
            line += f", {count:,} {reason}"
        if documents.skipped_files:
            skipped = plural(documents.skipped_files, "file")
            line += f"; {skipped} skipped by name"
        print(line)
    if len(index.ledger) > MAX_PRINTED_INPUTS:
        more_inputs = plural(len(index.ledger) - MAX_PRINTED_INPUTS, "more input")
        print(f"and {more_inputs}: `megatape data report {output}` shows them")
