"""Counts records and documents of a source: read, skipped, written, and dropped by reason."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from megatape.data.printable import printable
from megatape.errors import UserError, flag

# Non-negative count, small enough that sums fit into int64 and every value is exact as a float.
Count = Annotated[int, Field(ge=0, le=2**53)]

# Reasons for not writing a document, besides cleaning rules.
EMPTY_DOCUMENTS = "empty documents"
BAD = "bad records"
TOO_LONG = "records too long to read"
WITHOUT_TEXT = "samples without text"

# Bad records that are always tolerated.
FEW_BAD = 10
NUM_BAD_EXAMPLES = 5


@dataclass
class RecordCounts:
    """Counts of records skipped so far in a pass. Locations and paths are empty before the first such record.

    Attributes:
        read_bytes: Bytes read from the stored files.
        too_long: Records beyond the limit.
        first_too_long: Location of the first one.
        bad: Malformed records.
        bad_examples: `location: reason` of the first few.
        without_text: Samples in tars without a text member.
        first_without_text: Location of the first one.
        unverified: Compressed files without checksums, in which damage may go unnoticed.
        first_unverified: Path of the first one.
    """

    read_bytes: int = 0
    too_long: int = 0
    first_too_long: str = ""
    bad: int = 0
    bad_examples: list[str] = field(default_factory=list)
    without_text: int = 0
    first_without_text: str = ""
    unverified: int = 0
    first_unverified: str = ""

    @property
    def skipped(self) -> int:
        """Records without a document."""
        return self.bad + self.too_long

    def add(self, other: "RecordCounts") -> None:
        """Add the counts of later records."""
        self.read_bytes += other.read_bytes
        self.too_long += other.too_long
        self.first_too_long = self.first_too_long or other.first_too_long
        self.bad += other.bad
        self.bad_examples = (self.bad_examples + other.bad_examples)[:NUM_BAD_EXAMPLES]
        self.without_text += other.without_text
        self.first_without_text = self.first_without_text or other.first_without_text
        self.unverified += other.unverified
        self.first_unverified = self.first_unverified or other.first_unverified

    def add_bad(self, location: str, reason: str) -> None:
        self.bad += 1
        if len(self.bad_examples) < NUM_BAD_EXAMPLES:
            self.bad_examples.append(f"{printable(location)}: {reason}")

    def add_too_long(self, location: str) -> None:
        self.too_long += 1
        self.first_too_long = self.first_too_long or printable(location)

    def add_without_text(self, location: str) -> None:
        self.without_text += 1
        self.first_without_text = self.first_without_text or printable(location)

    def add_unverified(self, path: str) -> None:
        self.unverified += 1
        self.first_unverified = self.first_unverified or printable(path)


@dataclass
class DocumentCounts:
    """Counts of documents, in one input or in all.

    Attributes:
        read: Documents, and records without one.
        written: Documents written to a split.
        tokens: Tokens written, including control tokens.
        text_bytes: Size of the written texts in UTF-8.
        dropped: Other documents by reason.
        skipped_files: Files skipped because of their names.
        skipped_bytes: Total size of these files.
    """

    read: Count = 0
    written: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    dropped: dict[str, Count] = field(default_factory=dict)
    skipped_files: Count = 0
    skipped_bytes: Count = 0

    @property
    def num_kept(self) -> int:
        """Documents read and not dropped."""
        return self.read - sum(self.dropped.values())

    def add(self, other: "DocumentCounts") -> None:
        """Add the counts of other documents."""
        self.read += other.read
        self.written += other.written
        self.tokens += other.tokens
        self.text_bytes += other.text_bytes
        self.skipped_files += other.skipped_files
        self.skipped_bytes += other.skipped_bytes
        for reason, count in other.dropped.items():
            self.add_dropped(reason, count)

    def add_dropped(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count


@dataclass
class CorpusCounts(RecordCounts):
    """Counts of a pass over a source.

    Attributes:
        inputs: Counts by `--input`. Readers count documents read and dropped, the unit writer adds those written.
    """

    inputs: dict[str, DocumentCounts] = field(default_factory=dict)

    def add(self, other: RecordCounts) -> None:
        """Add the counts of later documents."""
        super().add(other)
        if isinstance(other, CorpusCounts):
            for name, counts in other.inputs.items():
                self.inputs.setdefault(name, DocumentCounts()).add(counts)

    @property
    def total(self) -> DocumentCounts:
        """Counts of all inputs, with the reasons in a fixed order."""
        total = DocumentCounts()
        for counts in self.inputs.values():
            total.add(counts)
        total.dropped = sort_reasons(total.dropped)
        return total


def sort_reasons(dropped: dict[str, int]) -> dict[str, int]:
    """Return counts in the order of the index (empty documents, rules by name, skipped records), without zeros."""
    rules = sorted(dropped.keys() - {EMPTY_DOCUMENTS, BAD, TOO_LONG, WITHOUT_TEXT})
    reasons = (EMPTY_DOCUMENTS, *rules, BAD, TOO_LONG, WITHOUT_TEXT)
    return {reason: dropped[reason] for reason in reasons if dropped.get(reason)}


def check_bad_records(counts: RecordCounts, num_read: int, max_bad_fraction: float, ending: str = "") -> None:
    """Check that few records of a pass were bad or too long.

    Args:
        counts: Counts of the pass.
        num_read: Records read.
        max_bad_fraction: Maximum fraction of skipped records. FEW_BAD records are always tolerated.
        ending: End of the error message.

    Raises:
        UserError: Too many records were skipped.
    """
    if counts.skipped <= max(FEW_BAD, max_bad_fraction * num_read):
        return
    if counts.bad:
        first = counts.bad_examples[0]
    else:
        first = f"{counts.first_too_long}: too long"
    raise UserError(
        f"of {num_read:,} records {counts.bad:,} are bad and {counts.too_long:,} longer than {flag('max_record_bytes')}, more "
        f"than {flag('max_bad_fraction')} {max_bad_fraction:g}; the first: {first}. Correct the input or the options, or raise "
        f"{flag('max_bad_fraction')}, and give the same command again{ending}"
    )
