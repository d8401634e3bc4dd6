"""The ledger of a data directory: what became of every document that was read."""

from megatape.data.shards.index import Index, Tally
from megatape.errors import UserError


def check_ledger(index: Index) -> Tally:
    """The sum of the ledger. Reading, dropping and writing are counted where they happen, and compared here.

    index: of a folder that has a ledger.
    Raises UserError if a document is missing or counted twice: of each input those read are those written and those dropped,
    and the sums are what the index says of reasons, splits and tables.
    """
    total = Tally()
    for name, tally in index.ledger.items():
        total.add(tally)
        _equal(f"documents of {name}", tally.read, tally.written + sum(tally.dropped.values()))
    splits = index.splits.values()
    tables = [table for tables in index.document_tables.values() for table in tables]
    _equal("documents in the tables", sum(table.documents for table in tables), total.written)
    _equal("tokens in the tables", sum(table.tokens for table in tables), total.tokens)
    _equal("tokens in the splits", sum(split.tokens for split in splits), total.tokens)
    _equal("bytes of text in the splits", sum(split.text_bytes for split in splits), total.text_bytes)
    for reason in {**total.dropped, **index.counts}:
        _equal(f"counts: {reason}", index.counts.get(reason, 0), total.dropped.get(reason, 0))
    return total


def _equal(what: str, found: int, accounted: int) -> None:
    if found != accounted:
        raise UserError(
            f"{what}: {found:,}, but the ledger accounts for {accounted:,}: index.json was changed, or this is a fault of the "
            "preparation, which please report"
        )
