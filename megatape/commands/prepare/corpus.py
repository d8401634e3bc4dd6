"""megatape prepare corpus: `megatape prepare corpus --source c4 --input FOLDER --output runs/data/c4`."""

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from megatape.commands.cli.shared_options import descriptions
from megatape.commands.data.messages import read_tokenizer, report_skipped, report_written
from megatape.commands.data.options import HeldOutOptions, SourceOptions
from megatape.errors import UserError
from megatape.registry import RULES
from megatape.utils.options import Count, option
from megatape.utils.units import plural
from megatape.utils.url_secrets import mask_secrets

if TYPE_CHECKING:
    from megatape.data.shards.entries import Index

# Maximum number of inputs whose counts of documents are printed.
MAX_PRINTED_INPUTS = 20


class Options(HeldOutOptions, SourceOptions):
    """A corpus, and the data directories to make of it.

    Attributes:
        output: data directory to write
        tokenizer: SentencePiece model, tokenizer.json or a folder of transformers (default: train a
            tokenizer on the source)
        vocab_size: vocabulary size to train
        validation_input: files, folders and URLs of the validation split
        max_documents: stop after N documents
        keep_duplicates: keep documents that equal an earlier one
        keep_documents: write the texts that cleaning leaves, and those that it drops with the
            reasons, for --source documents
        dry_run: write nothing; show what cleaning would do to the first N documents (1000 if N is
            not given)
        workers: processes (default: one for each core); more machines help if the same command runs
            there
        unit_bytes: size of the parts of the input that processes share, and of which each writes
            shards of its own (default: by the size of the input and --workers, at most 64 MiB)
        redo: file of an unfinished preparation that has changed since it was read: prepare its
            units again; repeatable
        task: on several machines: the share that this one begins with, counted from 0 (default: by
            the index of a Slurm array and the rank of a launcher)
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
        description="clean by a rule, see below; repeatable, applied in order (docs/clean_text.md)",
        metavar="NAME[:OPTION=VALUE,...]",
        completions=tuple(RULES),
        repeatable=True,
    )
    dry_run: Count | None = option(None, metavar="N", nargs="?", const="1000")
    workers: Count | None = option(None, metavar="N")
    unit_bytes: Count | None = option(None, metavar="N")
    redo: tuple[str, ...] = option((), metavar="NAME", repeatable=True)
    task: str | None = option(None, metavar="I/N")


def run(options: Options) -> None:
    """Write the data directory, or show the result of cleaning."""
    from tqdm import tqdm

    from megatape.data.cleaning.decisions import Cleaning
    from megatape.data.cleaning.rule import parse_rules
    from megatape.data.prepare.command import prepare
    from megatape.data.prepare.dry_run import dry_run
    from megatape.data.prepare.options import PreparationOptions
    from megatape.data.prepare.progress import Progress
    from megatape.data.prepare.task import parse_task, task_of_environment

    cleaning = Cleaning(parse_rules(options.rule), drop_duplicates=not options.keep_duplicates)
    source = options.read_source(
        max_documents=options.max_documents,
        validation=options.validation_input,
        unit_bytes=options.unit_bytes,
        fields=cleaning.needs,
    )
    if options.dry_run is not None:
        print(*dry_run(source, cleaning, options.dry_run), sep="\n")
        return
    if options.output is None:
        raise UserError("output is missing: name the data directory to write, or give `dry_run`")
    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = read_tokenizer(options.tokenizer)
    corpus = PreparationOptions(
        source=source,
        validation_share=options.validation_share,
        tokenizer=tokenizer,
        vocab_size=options.vocab_size,
        cleaning=cleaning,
        keep_documents=options.keep_documents,
    )
    if options.task:
        task = parse_task(options.task)
    else:
        task = task_of_environment()
    workers = options.workers or os.cpu_count() or 1
    with tqdm(desc="read", unit="B", unit_scale=True, delay=0.5) as bar:

        def show(done: Progress) -> None:
            seconds = max(bar.format_dict["elapsed"], 1e-3)
            documents = plural(done.written, "document")
            tokens = plural(done.tokens, "token")
            megabytes_per_second = done.text_bytes / seconds / 1e6
            tokens_per_second = done.tokens / seconds
            rates = f"{megabytes_per_second:.1f} MB/s of text, {tokens_per_second:,.0f} tokens/s"
            bar.set_postfix_str(f"{documents}, {tokens}, {rates}", refresh=False)
            bar.total = done.total_bytes or None
            bar.update(done.read_bytes - bar.n)

        index, counts = prepare(corpus, options.output, workers=workers, task=task, redo=options.redo, progress=show)
    _report_inputs(index, options.output)
    if counts is not None:
        report_skipped(counts, options.max_record_bytes)
    report_written(index, options.output)


def _report_inputs(index: "Index", output: Path) -> None:
    """Print the number of read, written and dropped documents of each input."""
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
        rest = plural(len(index.ledger) - MAX_PRINTED_INPUTS, "more input")
        print(f"and {rest}: `megatape data report {output}` shows them")
