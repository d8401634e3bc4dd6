"""Reads units of a source: yields the kept documents, and counts the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

from megatape.data.counts import (
    BAD,
    EMPTY_DOCUMENTS,
    FEW_BAD,
    TOO_LONG,
    WITHOUT_TEXT,
    CorpusCounts,
    DocumentCounts,
    check_bad_records,
    sort_reasons,
)
from megatape.data.printable import printable
from megatape.data.sources.document import EMPTY, Decide, Document, OnDecision, keep
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError, flag


def read_unit(
    source: Source, unit: Unit, counts: CorpusCounts, decide: Decide = keep, on_decision: OnDecision | None = None
) -> Iterator[Document]:
    """Yield the kept documents of a unit, in a fixed order.

    Args:
        source: Source of this unit.
        unit: One of the source's units.
        counts: Counts to update. Bad and too long records and dropped documents are counted, not fatal.
        decide: Decides about each document that is not empty, in order. By default all are kept.
        on_decision: Called for each document, in order.

    Raises:
        FileNotFoundError: A path does not exist.
        UserError: A file is corrupted, or too many records are bad.
    """
    num_kept = 0
    reader = source.reader
    # A unit may have thousands of small files, mostly of one input.
    for input_name, names in groupby(unit.inputs, source.input_of):
        user_input = printable(input_name)
        with _count_input(counts, user_input) as input_counts:
            for document in reader.read(source, replace(unit, inputs=tuple(names)), counts):
                input_counts.read += 1
                if not document.text or document.text.isspace():
                    decision = EMPTY
                else:
                    decision = decide(document)
                if on_decision is not None:
                    on_decision(document, decision)
                if decision.text is None:
                    input_counts.add_dropped(decision.label)
                    continue
                num_kept += 1
                # Positional arguments take half the time of `_replace`.
                yield Document(
                    decision.text,
                    printable(document.location),
                    document.url,
                    user_input,
                    decision.scores,
                    document.fields,
                    decision.content,
                    decision.digest,
                )
                if num_kept == source.max_documents:
                    return
    check_bad(source, counts)


@contextmanager
def _count_input(counts: CorpusCounts, user_input: str) -> Iterator[DocumentCounts]:
    """Yield counts for a part of an input. At the end, count the records skipped meanwhile, and add all to `counts`."""
    input_counts = DocumentCounts()
    num_bad = counts.bad
    num_too_long = counts.too_long
    num_without_text = counts.without_text
    try:
        yield input_counts
    finally:
        skipped = {
            BAD: counts.bad - num_bad,
            TOO_LONG: counts.too_long - num_too_long,
            WITHOUT_TEXT: counts.without_text - num_without_text,
        }
        for reason, num_skipped in skipped.items():
            input_counts.read += num_skipped
            input_counts.add_dropped(reason, num_skipped)
        input_counts.dropped = sort_reasons(input_counts.dropped)
        counts.inputs.setdefault(user_input, DocumentCounts()).add(input_counts)


def read_documents(source: Source, counts: CorpusCounts, units: Sequence[Unit] | None = None) -> Iterator[Document]:
    """Yield the documents of all units, without a separate validation split.

    Args:
        source: Document source.
        counts: Counts to update.
        units: All units of the source, if the caller has them.

    Raises:
        UserError: No file matches, or the source has no documents.
    """
    if units is None:
        units = source.units()
    for unit in units:
        if unit.split != "validation":
            yield from read_unit(source, unit, counts)
    check_not_empty(source, counts)


def check_bad(source: Source, counts: CorpusCounts) -> None:
    """Raise UserError if too many records of a pass were skipped."""
    num_read = counts.total.read
    check_bad_records(counts, num_read, source.max_bad_fraction, "; what is finished stays")
    if counts.without_text > max(FEW_BAD, source.max_skipped_fraction * num_read):
        raise UserError(
            f"of {num_read:,} samples {counts.without_text:,} have no member named .txt or .json, more than "
            f"{flag('max_skipped_fraction')} {source.max_skipped_fraction:g}; the first: {counts.first_without_text}. Rename "
            f"the members with text, or raise {flag('max_skipped_fraction')}, and give the same command again; what is "
            "finished stays"
        )


def check_not_empty(source: Source, counts: CorpusCounts) -> None:
    """Raise UserError if a pass over the whole source has kept no document."""
    total = counts.total
    if total.num_kept:
        return
    empty = total.dropped.get(EMPTY_DOCUMENTS, 0)
    without_text = total.dropped.get(WITHOUT_TEXT, 0)
    dropped = sum(total.dropped.values()) - empty - without_text - counts.skipped
    examples = ""
    if counts.bad:
        examples += f", first: {counts.bad_examples[0]}"
    if without_text:
        examples += f", {without_text} without text, first: {counts.first_without_text}"
    raise UserError(
        f"{flag('source')} {source.kind} {' '.join(source.inputs)}: no documents found ({empty} empty, {counts.too_long} "
        f"longer than {flag('max_record_bytes')} {source.max_record_bytes:,}, {dropped} dropped, {counts.bad} bad"
        f"{examples}): check {flag('source')} and {flag('input')}"
    )
