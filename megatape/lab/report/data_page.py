"""The tables that describe a data directory, and a page of them."""

from pathlib import Path

from megatape.data.printable import printable
from megatape.data.shards.contents import Bin, Contents
from megatape.errors import path_errors
from megatape.lab.report.template import PAGE, fill
from megatape.utils.files import new_folder
from megatape.utils.tables import Table
from megatape.utils.units import format_bytes

BAR = 30  # characters of the longest in a histogram


@path_errors()
def write_data_report(contents: Contents, output: Path) -> Path:
    """Write index.html into the new folder `output`; returns its path. Raises FileExistsError if `output` exists."""
    with new_folder(output) as folder:
        name = contents.directory.resolve().name
        text = fill("data.html", name=name, tables=data_tables(contents), samples=contents.samples)
        (folder / PAGE).write_text(text, encoding="utf-8")
    return output / PAGE


def data_tables(contents: Contents) -> dict[str, Table]:
    """Tables of a data directory, by caption. Tables without rows are omitted."""
    tables = {"Data directory": _overview(contents), "Splits": _splits(contents), "Documents by input": _ledger(contents)}
    tables |= {f"Lengths of documents, {name}": _lengths(bins) for name, bins in contents.lengths.items()}
    for name, domains in contents.domains.items():
        rows = [(printable(domain["domain"]), [f"{domain['documents']:,}", f"{domain['tokens']:,}"]) for domain in domains]
        tables[f"Domains, {name}"] = Table(["domain", "documents", "tokens"], rows)
    return {caption: table for caption, table in tables.items() if table.rows}


def _overview(contents: Contents) -> Table:
    index = contents.index
    rows = {
        "folder": str(contents.directory.resolve()),
        "source": ", ".join(f"{name} {value}" for name, value in index.source.items()),
        "rules": "; ".join(str(rule) for rule in index.rules),
        "not written": "" if index.ledger else ", ".join(f"{count:,} {reason}" for reason, count in index.counts.items()),
        "tokenizer": f"{index.tokenizer.file}, {index.tokenizer.vocab_size:,} tokens, sha256 {index.tokenizer.sha256}",
        "token ids": index.dtype,
        "validation share": f"{index.validation_share}",
    }
    return Table.of_columns({"value": rows})


def _splits(contents: Contents) -> Table:
    columns = {
        name: {
            "documents": "" if contents.index.answers else f"{split.documents:,}",
            "examples": f"{contents.index.answers[name].examples:,}" if contents.index.answers else "",
            "tokens of answers": f"{contents.index.answers[name].tokens:,}" if contents.index.answers else "",
            "text": format_bytes(split.text_bytes),
            "tokens": f"{split.tokens:,}",
            "bytes a token": f"{split.text_bytes / split.tokens:.3f}" if split.text_bytes else "",
            "unigram entropy": f"{split.unigram_entropy:.4f} nats",
            "shards": f"{len(split.shards):,}, {format_bytes(sum(shard.bytes for shard in split.shards))}",
        }
        for name, split in contents.index.splits.items()
    }
    return Table.of_columns(columns)


def _ledger(contents: Contents) -> Table:
    total = contents.total
    if total is None:
        return Table([], [])
    header = ["input", "read", "written", *total.dropped, "tokens", "bytes a token"]
    if total.skipped_files:
        header.append("skipped files")
    rows = []
    for name, tally in [*contents.index.ledger.items(), *([("all", total)] if len(contents.index.ledger) > 1 else [])]:
        dropped = [f"{tally.dropped.get(reason, 0):,}" for reason in total.dropped]
        each = f"{tally.text_bytes / tally.tokens:.3f}" if tally.tokens else ""
        cells = [f"{tally.read:,}", f"{tally.written:,}", *dropped, f"{tally.tokens:,}", each]
        if total.skipped_files:
            cells.append(f"{tally.skipped_files:,}")
        rows.append((name, cells))
    return Table(header, rows)


def _lengths(bins: list[Bin]) -> Table:
    most = max((bin.documents for bin in bins), default=0)
    tokens = sum(bin.tokens for bin in bins)
    rows = [
        (
            f"{bin.first:,} to {bin.last:,}",
            [f"{bin.documents:,}", "█" * -(-BAR * bin.documents // most), f"{bin.tokens / tokens:.1%}"],
        )
        for bin in bins
    ]
    return Table(["tokens", "documents", "", "share of all tokens"], rows)
