"""Samples the texts of a whole source, to train a tokenizer on."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from megatape.data.counts import CorpusCounts
from megatape.data.sources.document import Decide, Decision, Document, keep
from megatape.data.sources.reading import check_bad, check_not_empty, read_unit
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit

# Maximum number of files opened at first.
MAX_FILES = 256
# At first, one of up to this many documents is taken, so that the sample reaches far into large files.
MAX_STRIDE = 8
SKIPPED = Decision(None, "not in the sample")


class Density(NamedTuple):
    """Density of a sample in its source.

    Attributes:
        unit_step: Every n-th unit is read.
        stride: Every n-th document of a unit is taken.
        share: Bytes of text taken from a unit.
    """

    unit_step: int
    stride: int
    share: int

    def increased(self) -> "Density":
        """Return a density with about twice as many units, documents and bytes."""
        return Density(max(self.unit_step // 2, 1), max(self.stride // 2, 1), 2 * self.share)


class Sample(NamedTuple):
    """Texts of a source or unit, with their size in UTF-8. is_complete: whether no text is left out."""

    texts: list[str]
    size: int
    is_complete: bool


def sample_texts(
    source: Source,
    max_bytes: int,
    decide: Decide = keep,
    heartbeat: Callable[[], None] = lambda: None,
    max_files: int = MAX_FILES,
) -> list[str]:
    """Return texts from all parts of a source, about `max_bytes` in UTF-8, or all texts if there are fewer.

    Evenly spread files give equal shares, one of every few documents. While the sample is too small, shares grow, and more
    files and documents are taken. If it becomes too large, texts are dropped evenly. A small source is taken completely, in
    order. The validation split is not read. The same source always gives the same texts.

    Args:
        source: Source of the texts.
        max_bytes: Sample size in bytes.
        decide: Decides about each document in the sample.
        heartbeat: Called for each document.
        max_files: Maximum number of files opened at first.

    Raises:
        UserError: The source has no documents, or too many bad ones.
    """
    units = [unit for unit in replace(source, unit_bytes=None).units() if unit.split != "validation"]
    num_bytes = sum(unit.num_bytes for unit in units)
    if source.max_documents is None:
        # With max_documents, only the first documents in order count, so units are not divided.
        units = _split_by_file(units)

    unit_step = -(len(units) // -max_files)
    stride = min(max(num_bytes // max_bytes, 1), MAX_STRIDE)
    share = max_bytes * unit_step // max(len(units), 1) + 1
    density = Density(unit_step, stride, share)
    if 0 < num_bytes <= max_bytes:
        density = Density(unit_step=1, stride=1, share=max_bytes)

    # Too many bad records of one file may be few of the source, so they are checked at the end.
    lenient = replace(source, max_bad_fraction=1.0)
    while True:
        counts = CorpusCounts()
        sample = _read_sample(lenient, units, density, counts, decide, heartbeat)
        if sample.size >= max_bytes:
            check_bad(source, counts)
            return [text for number, text in enumerate(sample.texts) if number * max_bytes % sample.size < max_bytes]
        if sample.is_complete:
            check_not_empty(source, counts)
            check_bad(source, counts)
            return sample.texts
        density = density.increased()


def _split_by_file(units: list[Unit]) -> list[Unit]:
    single_file_units = []
    for unit in units:
        single_file_units += [replace(unit, inputs=(name,)) for name in unit.inputs]
    return single_file_units


def _read_sample(
    source: Source,
    units: list[Unit],
    density: Density,
    counts: CorpusCounts,
    decide: Decide,
    heartbeat: Callable[[], None],
) -> Sample:
    """Return a sample of this density."""
    numbers = count()

    def choose(document: Document) -> Decision:
        heartbeat()
        if next(numbers) % density.stride:
            return SKIPPED
        return decide(document)

    texts: list[str] = []
    size = 0
    is_complete = density.unit_step == density.stride == 1
    for unit in units[:: density.unit_step]:
        unit_sample = _read_share(source, unit, counts, choose, density.share)
        texts += unit_sample.texts
        size += unit_sample.size
        is_complete = is_complete and unit_sample.is_complete
    return Sample(texts, size, is_complete)


def _read_share(source: Source, unit: Unit, counts: CorpusCounts, decide: Decide, max_bytes: int) -> Sample:
    """Return the first kept texts of a unit, up to a size in UTF-8."""
    texts = []
    size = 0
    for document in read_unit(source, unit, counts, decide):
        texts.append(document.text)
        size += len(document.text.encode())
        if size >= max_bytes:
            return Sample(texts, size, is_complete=False)
    return Sample(texts, size, is_complete=True)
