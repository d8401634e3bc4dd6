"""Checks the ledger of a data directory: no document is lost, and none is counted twice."""

from megatape.data.counts import DocumentCounts
from megatape.data.shards.entries import Index
from megatape.errors import UserError


def check_ledger(index: Index) -> DocumentCounts:
    """Compare a data directory's ledger with its counts by reason, its splits and its tables.

    Documents are counted where they are read, dropped and written, so comparing finds any counted twice or never.

    Returns:
        Sum of the ledger.

    Raises:
        UserError: A document is missing or counted twice.
    """
    total = DocumentCounts()
    for name, counts in index.ledger.items():
        total.add(counts)
        _check_equal(f"documents of {name}", counts.read, counts.written + sum(counts.dropped.values()))

    table_documents = 0
    table_tokens = 0
    for tables in index.document_tables.values():
        table_documents += sum(table.documents for table in tables)
        table_tokens += sum(table.tokens for table in tables)
    splits = index.splits.values()
    _check_equal("documents in the tables", table_documents, total.written)
    _check_equal("tokens in the tables", table_tokens, total.tokens)
    _check_equal("tokens in the splits", sum(split.tokens for split in splits), total.tokens)
    _check_equal("bytes of text in the splits", sum(split.text_bytes for split in splits), total.text_bytes)
    for reason in {**total.dropped, **index.counts}:
        _check_equal(f"counts: {reason}", index.counts.get(reason, 0), total.dropped.get(reason, 0))
    return total


def _check_equal(name: str, count: int, ledger_count: int) -> None:
    if count != ledger_count:
        raise UserError(
            f"{name}: {count:,}, but the ledger accounts for {ledger_count:,}: index.json was changed, or this is a bug of "
            "MegaTAPE; please report it"
        )
