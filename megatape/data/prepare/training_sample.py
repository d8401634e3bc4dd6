"""The texts that a tokenizer is trained on: a sample of a whole source."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

from megatape.data.counts import CorpusCounts
from megatape.data.sources.document import Decide, Decision, Document, keep
from megatape.data.sources.reading import check_bad, check_found, read_unit
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit

MAX_FILES = 256  # that are opened at first
MAX_STRIDE = 8  # of so many documents one is taken at first, so that the sample reaches into large files
SKIPPED = Decision(None, "not in the sample")


def sample_texts(source: Source, max_bytes: int, decide: Decide = keep, beat: Callable[[], None] = lambda: None) -> list[str]:
    """Texts from all parts of a source, of about `max_bytes` in UTF-8, or all texts if there are fewer.

    Equal shares come from files that are spread evenly, one of every few documents. While that is too little, shares grow, and
    more files and documents are taken. Of too much, texts are left out evenly. A source without a choice is taken whole, in
    order. The validation split is not read. The same source gives the same texts.

    Args:
        source: The source.
        max_bytes: Size of the sample.
        decide: Decides about each document in the sample.
        beat: Called for each document.

    Raises:
        UserError: The source has no documents, or too many bad ones.
    """
    units = [unit for unit in replace(source, unit_bytes=None).units() if unit.split != "validation"]
    num_bytes = sum(unit.num_bytes for unit in units)
    if source.max_documents is None:  # else the first ones of all files are meant
        units = [replace(unit, inputs=(name,)) for unit in units for name in unit.inputs]
    step = -(-len(units) // MAX_FILES)
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
            beat()
            return SKIPPED if next(numbers) % stride else decide(document)

        # Too many bad records of a file may be few of the whole.
        parts = [_texts(replace(source, max_bad_fraction=1.0), unit, counts, choose, share) for unit in units[::step]]
        texts = [text for texts, _ in parts for text in texts]
        size = sum(size for _, size in parts)
        if size >= max_bytes:
            check_bad(source, counts)
            return [text for number, text in enumerate(texts) if number * max_bytes % size < max_bytes]
        if step == stride == 1 and all(size < share for _, size in parts):
            check_found(source, counts)
            check_bad(source, counts)
            return texts
        step = max(step // 2, 1)
        stride = max(stride // 2, 1)
        share = 2 * share


def _texts(source: Source, unit: Unit, counts: CorpusCounts, decide: Decide, max_bytes: int) -> tuple[list[str], int]:
    """The first kept texts of a unit, up to a size in UTF-8, and their size."""
    texts = []
    size = 0
    for document in read_unit(source, unit, counts, decide):
        texts.append(document.text)
        size += len(document.text.encode())
        if size >= max_bytes:
            break
    return texts, size
