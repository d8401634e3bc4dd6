"""megatape prepare corpus: megatape prepare corpus --source c4 --input FOLDER --output runs/data/c4"""

import argparse
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from megatape.commands import options
from megatape.errors import UserError
from megatape.registry import RULES

if TYPE_CHECKING:
    from megatape.data.cleaning.cleaning import Cleaning
    from megatape.data.sources.source import Source

NUM_INPUTS = 20  # of which is said what became of their documents


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_source(parser)
    options.add_new_data(parser, required=False)
    vocabulary = parser.add_mutually_exclusive_group()
    vocabulary.add_argument(
        "--tokenizer",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="SentencePiece model, tokenizer.json or a folder of transformers (default: train a tokenizer on the source); "
        "several give a data directory each, by their names below --output",
    )
    vocabulary.add_argument(
        "--vocab-size", type=int, default=4096, metavar="N", help="vocabulary size to train (default %(default)s)"
    )
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument(
        "--validation-input", nargs="+", default=[], metavar="PATH", help="files, folders and URLs of the validation split"
    )
    options.add_validation_share(held_out, "documents")
    parser.add_argument("--max-documents", type=int, metavar="N", help="stop after N documents")
    parser.add_argument("--keep-duplicates", action="store_true", help="keep documents that equal an earlier one")
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="NAME[:OPTION=VALUE,...]",
        help=f"clean by a rule; repeatable, applied in order (docs/data_cleaning.md): {', '.join(RULES)}",
    )
    parser.add_argument(
        "--dry-run",
        type=options.positive,
        nargs="?",
        const=1000,
        metavar="N",
        help="write nothing; show what cleaning would do to the first N documents (default 1000)",
    )
    parser.add_argument(
        "--workers",
        type=options.positive,
        default=os.cpu_count(),
        metavar="N",
        help="processes (default: one for each core); more machines help if the same command runs there",
    )


def run(args: argparse.Namespace) -> int:
    """Write the data directory, or show what would become of documents."""
    from tqdm import tqdm

    from megatape.data.cleaning.cleaning import parse_rules
    from megatape.data.index import load_index
    from megatape.data.preparation import Corpus
    from megatape.data.prepare import Progress, prepare

    source = options.read_source(args, max_documents=args.max_documents, validation=tuple(args.validation_input))
    cleaning = parse_rules(args.rule)
    if args.dry_run is not None:
        return _dry_run(source, cleaning, not args.keep_duplicates, args.dry_run)
    if args.output is None:
        raise UserError("--output is missing: name the data directory to write, or give --dry-run")
    tokenizers = [options.read_tokenizer(path) for path in args.tokenizer]
    several = dict(zip(_names(args.tokenizer), tokenizers, strict=True))
    corpus = Corpus(source, args.validation_share, None, args.vocab_size, not args.keep_duplicates, several, cleaning)
    with tqdm(desc="read", unit="B", unit_scale=True, delay=0.5) as bar:

        def show(done: Progress) -> None:
            seconds = max(bar.format_dict["elapsed"], 1e-3)
            rates = f"{done.text_bytes / seconds / 1e6:.1f} MB/s of text, {done.tokens / seconds:,.0f} tokens/s"
            bar.set_postfix_str(f"{done.documents:,} documents, {done.tokens:,} tokens, {rates}", refresh=False)
            bar.total = done.total_bytes or None
            bar.update(done.read_bytes - bar.n)

        index, counts = prepare(corpus, args.output, workers=args.workers, progress=show)
    for name in several or [""]:
        for split, content in load_index(args.output / name).splits.items():
            print(f"{name and name + ' '}{split}: {content.documents:,} documents, {content.tokens:,} tokens, ", end="")
            print(f"{len(content.shards)} shards")
    for name, tally in islice(index.ledger.items(), NUM_INPUTS):
        dropped = "".join(f", {count:,} {reason}" for reason, count in tally.dropped.items())
        print(f"{name}: {tally.read:,} documents read, {tally.written:,} written{dropped}")
    if len(index.ledger) > NUM_INPUTS:
        print(f"and {len(index.ledger) - NUM_INPUTS} more inputs: `megatape data report {args.output}` shows them")
    if counts is not None:
        options.report_skipped(counts, args.max_record_bytes)
    print(f"wrote {args.output}")
    return 0


def _names(tokenizers: list[Path]) -> list[str]:
    """Of their data directories below the output: those of the tokenizers' files or folders, and of a single one
    none, which is the output itself. Raises UserError if two have the same."""
    from megatape.data.tokenizer import JSON_FILE, SENTENCEPIECE_FILE

    if len(tokenizers) == 1:
        return [""]
    names: dict[str, Path] = {}
    for path in (Path(os.path.realpath(tokenizer)) for tokenizer in tokenizers):
        name = path.name if path.is_dir() else path.parent.name if path.name in (JSON_FILE, SENTENCEPIECE_FILE) else path.stem
        if name in names:
            raise UserError(
                f"--tokenizer {names[name]} and {path} are both called {name!r}, and each needs a folder of its own name: copy "
                "one under another name"
            )
        names[name] = path
    return list(names)


def _dry_run(source: "Source", cleaning: "Cleaning", drop_duplicates: bool, num_documents: int) -> int:
    from megatape.data.dry_run import dry_run

    effects, read = dry_run(source, cleaning, drop_duplicates, num_documents)
    print(f"of the first {read:,} documents {read - sum(effect.dropped for effect in effects.values()):,} stay")
    for name, effect in effects.items():
        print(f"{name}: {effect.dropped:,} left out, {effect.changed:,} changed")
        for place, outcome, text in effect.examples:
            print(f"  {place}: {outcome}: {text}")
    return 0
