"""Reads the documents of a source, counts what becomes of them, and stops where too many are bad."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from megatape.data.cleaning.rule import Dropped
from megatape.data.io.records import FEW_BAD, printable
from megatape.data.shards.index import Tally
from megatape.data.sources.source import CorpusCounts, Document, Source, Unit
from megatape.errors import UserError


def read_unit(
    source: Source, unit: Unit, counts: CorpusCounts, judge: Callable[[str], str] = lambda text: text
) -> Iterator[Document]:
    """Yields the non-empty documents of a unit in a fixed order and updates `counts` as it goes.

    judge: what is left of each of them, asked in order; it raises Dropped for one that is left out. Bad records and too long
    ones are counted, not fatal.
    Raises FileNotFoundError for a path that does not exist, and UserError if a file is corrupted.
    """
    for name in unit.inputs:
        given = source.input_of(name)
        tally = counts.inputs.setdefault(given, Tally())
        skipped, dropped = counts.skipped, Counter(counts.recorded())
        try:
            for document in source.reader.read(source, replace(unit, inputs=(name,)), counts):
                tally.read += 1
                text = document.text
                if not text or text.isspace():
                    counts.empty += 1
                    continue
                try:
                    text = judge(text)
                except Dropped as reason:
                    counts.dropped[str(reason)] = counts.dropped.get(str(reason), 0) + 1
                    continue
                counts.documents += 1
                counts.text_bytes += len(text.encode())
                yield Document(text, printable(document.place), document.url, given)
                if counts.documents == source.max_documents:
                    return
        finally:
            tally.add(Tally(read=counts.skipped - skipped, dropped=Counter(counts.recorded()) - dropped))
    check_bad(source, counts)


def read_documents(source: Source, counts: CorpusCounts, judge: Callable[[str], str] = lambda text: text) -> Iterator[Document]:
    """The same for all units but those of a given validation split.

    Raises UserError if no file matches or the source has no documents.
    """
    for unit in source.units():
        if unit.split != "validation":
            yield from read_unit(source, unit, counts, judge)
    check_found(source, counts)


def check_bad(source: Source, counts: CorpusCounts) -> None:
    """Raise UserError if too many of the records of a pass gave no document."""
    read = sum(tally.read for tally in counts.inputs.values())
    if counts.skipped > max(FEW_BAD, source.max_bad_fraction * read):
        first = counts.bad_examples[0] if counts.bad else f"{counts.first_too_long}: too long"
        raise UserError(
            f"of {read:,} records {counts.bad:,} are bad and {counts.too_long:,} longer than `max_record_bytes`, more than "
            f"`max_bad_fraction` {source.max_bad_fraction:g}; the first: {first}. What is finished stays: correct the input or "
            "the options, or raise `max_bad_fraction`, and give the same command again"
        )


def check_found(source: Source, counts: CorpusCounts) -> None:
    """Raise UserError if a pass over all of a source has found no document."""
    if counts.documents == 0:
        left_out = sum(counts.dropped.values())
        raise UserError(
            f"source {source.kind} {' '.join(source.inputs)}: no documents found ({counts.empty} empty, {counts.too_long} "
            f"longer than `max_record_bytes` {source.max_record_bytes:,}, {left_out} left out, {counts.bad} bad"
            f"{', first: ' + counts.bad_examples[0] if counts.bad else ''}): check `source` and `input`"
        )
