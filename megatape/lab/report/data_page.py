"""The page about a data directory, and its tables."""

from pathlib import Path

from megatape.data.printable import printable
from megatape.data.shards.contents import Bin, Contents
from megatape.errors import path_errors
from megatape.lab.report.template import PAGE, fill
from megatape.utils.files.atomic import new_folder
from megatape.utils.text.tables import Table
from megatape.utils.text.units import format_bytes
from megatape.utils.values.rounding import divide_up

# Length of the longest bar in a histogram, in characters.
BAR_CHARACTERS = 30


@path_errors()
def write_data_report(contents: Contents, output: Path) -> Path:
    """Write index.html into a new folder.

    Args:
        contents: The data directory's contents.
        output: New folder.

    Returns:
        Path of the page.

    Raises:
        FileExistsError: `output` exists.
    """
    with new_folder(output) as folder:
        name = contents.directory.resolve().name
        text = fill("data.html", name=name, tables=data_tables(contents), samples=contents.samples)
        (folder / PAGE).write_text(text, encoding="utf-8")
    return output / PAGE


def data_tables(contents: Contents) -> dict[str, Table]:
    """Return a data directory's tables by caption, without empty ones."""
    tables = {
        "Data directory": _overview(contents),
        "Splits": _splits(contents),
        "Documents by input": _ledger(contents),
    }
    for name, bins in contents.lengths.items():
        tables[f"Lengths of documents, {name}"] = _lengths(bins)
    for name, domains in contents.domains.items():
        rows = []
        for domain in domains:
            cells = [f"{domain.documents:,}", f"{domain.tokens:,}"]
            rows.append((printable(domain.domain), cells))
        tables[f"Domains, {name}"] = Table(["domain", "documents", "tokens"], rows)
    return {caption: table for caption, table in tables.items() if table.rows}


def _overview(contents: Contents) -> Table:
    index = contents.index
    tokenizer = index.tokenizer
    # Earlier versions did not count documents by input.
    not_written = ""
    if not index.ledger:
        not_written = ", ".join(f"{count:,} {reason}" for reason, count in index.counts.items())
    rows = {
        "folder": str(contents.directory.resolve()),
        "source": ", ".join(f"{name} {value}" for name, value in index.source.items()),
        "rules": "; ".join(str(rule) for rule in index.rules),
        "not written": not_written,
        "tokenizer": f"{tokenizer.file}, {tokenizer.vocab_size:,} tokens, sha256 {tokenizer.sha256}",
        "token ids": index.dtype,
        "validation share": f"{index.validation_share}",
    }
    return Table.of_columns({"value": rows})


def _splits(contents: Contents) -> Table:
    index = contents.index
    columns = {}
    for name, split in index.splits.items():
        documents = f"{split.documents:,}"
        examples = ""
        answer_tokens = ""
        if index.answers:
            documents = ""
            examples = f"{index.answers[name].examples:,}"
            answer_tokens = f"{index.answers[name].tokens:,}"
        token_bytes = ""
        if split.text_bytes:
            token_bytes = f"{split.text_bytes / split.tokens:.3f}"
        shard_bytes = sum(shard.bytes for shard in split.shards)
        columns[name] = {
            "documents": documents,
            "examples": examples,
            "tokens of answers": answer_tokens,
            "text": format_bytes(split.text_bytes),
            "tokens": f"{split.tokens:,}",
            "bytes per token": token_bytes,
            "unigram entropy": f"{split.unigram_entropy:.4f} nats",
            "shards": f"{len(split.shards):,}, {format_bytes(shard_bytes)}",
        }
    return Table.of_columns(columns)


def _ledger(contents: Contents) -> Table:
    total = contents.total
    if total is None:
        return Table([], [])
    header = ["input", "read", "written", *total.dropped, "tokens", "bytes per token"]
    if total.skipped_files:
        header.append("skipped files")
    tallies = list(contents.index.ledger.items())
    if len(tallies) > 1:
        tallies.append(("all", total))
    rows = []
    for name, tally in tallies:
        dropped = [f"{tally.dropped.get(reason, 0):,}" for reason in total.dropped]
        token_bytes = ""
        if tally.tokens:
            token_bytes = f"{tally.text_bytes / tally.tokens:.3f}"
        cells = [f"{tally.read:,}", f"{tally.written:,}", *dropped, f"{tally.tokens:,}", token_bytes]
        if total.skipped_files:
            cells.append(f"{tally.skipped_files:,}")
        rows.append((name, cells))
    return Table(header, rows)


def _lengths(bins: list[Bin]) -> Table:
    most_documents = max((bin.documents for bin in bins), default=0)
    num_tokens = sum(bin.tokens for bin in bins)
    rows = []
    for bin in bins:
        # Round up, so that every bin has a bar.
        bar_length = divide_up(BAR_CHARACTERS * bin.documents, most_documents)
        cells = [f"{bin.documents:,}", "█" * bar_length, f"{bin.tokens / num_tokens:.1%}"]
        rows.append((f"{bin.first:,} to {bin.last:,}", cells))
    return Table(["tokens", "documents", "", "share of all tokens"], rows)
