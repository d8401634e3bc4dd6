"""Texts to train a tokenizer on: a sample of a whole source."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from megatape.data.counts import CorpusCounts
from megatape.data.sources.document import Decide, Decision, Document, keep
from megatape.data.sources.reading import check_bad, check_found, read_unit
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit

# Maximum number of files opened at first.
MAX_FILES = 256
# At first, one of up to this many documents is taken, so that the sample reaches far into large files.
MAX_STRIDE = 8
SKIPPED = Decision(None, "not in the sample")


def sample_texts(
    source: Source,
    max_bytes: int,
    decide: Decide = keep,
    heartbeat: Callable[[], None] = lambda: None,
    max_files: int = MAX_FILES,
) -> list[str]:
    """Return texts from all parts of a source, about `max_bytes` in UTF-8, or all texts if there are fewer.

    Evenly spread files give equal shares, one of every few documents. While these are too few, shares grow, and more files and
    documents are taken. If these are too many, texts are left out evenly. A small source is taken whole, in order. The
    validation split is not read. The same source gives the same texts.

    Args:
        source: Source of the texts.
        max_bytes: Size of the sample.
        decide: Decides about each document in the sample.
        heartbeat: Called for each document.
        max_files: Maximum number of files opened at first.

    Raises:
        UserError: The source has no documents, or too many bad ones.
    """
    units = [unit for unit in replace(source, unit_bytes=None).units() if unit.split != "validation"]
    num_bytes = sum(unit.num_bytes for unit in units)
    if source.max_documents is None:
        # With max_documents, the first documents of all files are meant, so units stay whole.
        units = _divided_by_file(units)
    step = -(len(units) // -max_files)
    stride = min(max(num_bytes // max_bytes, 1), MAX_STRIDE)
    share = max_bytes * step // max(len(units), 1) + 1
    if 0 < num_bytes <= max_bytes:
        step = 1
        stride = 1
        share = max_bytes
    while True:
        counts = CorpusCounts()
        numbers = count()

        def choose(document: Document, stride: int = stride, numbers: count = numbers) -> Decision:
            heartbeat()
            if next(numbers) % stride:
                return SKIPPED
            return decide(document)

        # Too many bad records of a file may be few of the whole, so they are checked at the end.
        lenient = replace(source, max_bad_fraction=1.0)
        texts: list[str] = []
        size = 0
        is_whole = step == stride == 1
        for unit in units[::step]:
            unit_texts, unit_size = _texts(lenient, unit, counts, choose, share)
            texts += unit_texts
            size += unit_size
            if unit_size >= share:
                is_whole = False
        if size >= max_bytes:
            check_bad(source, counts)
            return [text for number, text in enumerate(texts) if number * max_bytes % size < max_bytes]
        if is_whole:
            check_found(source, counts)
            check_bad(source, counts)
            return texts
        step = max(step // 2, 1)
        stride = max(stride // 2, 1)
        share = 2 * share


def _divided_by_file(units: list[Unit]) -> list[Unit]:
    divided = []
    for unit in units:
        divided += [replace(unit, inputs=(name,)) for name in unit.inputs]
    return divided


def _texts(source: Source, unit: Unit, counts: CorpusCounts, decide: Decide, max_bytes: int) -> tuple[list[str], int]:
    """Return the first kept texts of a unit, up to a size in UTF-8, and their size."""
    texts = []
    size = 0
    for document in read_unit(source, unit, counts, decide):
        texts.append(document.text)
        size += len(document.text.encode())
        if size >= max_bytes:
            break
    return texts, size
