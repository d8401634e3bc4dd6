"""Records to fine-tune on: files, or a data set of the Hugging Face hub."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from megatape.data.counts import BAD, TOO_LONG, RecordCounts
from megatape.data.finetuning.fields import FieldMapping
from megatape.data.finetuning.format import Limits
from megatape.data.io.inputs import check_distinct, list_inputs, listed_files
from megatape.data.io.json_array import read_json
from megatape.data.io.listing import Listing, SkippedFiles, summarize_skipped
from megatape.data.io.records import JSON_LINES
from megatape.data.sources.hub import stream_records
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES, MAX_SKIPPED_FRACTION
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.errors import UserError, path_errors

KIND = "finetuning"


class SourceRecord(NamedTuple):
    """Record of a source.

    Attributes:
        place: Place in the source.
        value: The record.
        split: Split of the record; None if the prompt decides.
    """

    place: str
    value: Any
    split: str | None


@dataclass(frozen=True)
class ExampleSource:
    """Source of examples, and limits on their length.

    Attributes:
        format: Name in FORMATS.
        inputs: Files and folders with lines of JSON, or files with one JSON array; or the name of one data set of the hub.
        validation: Inputs of the validation split, or the name of that split of the data set; empty: a share of `inputs`.
        limits: Limits of an example.
        validation_share: Share of the prompts to hold out, at least one prompt. Examples with the same prompt stay together.
        max_record_bytes: Size of the longest line that is read.
        max_bad_fraction: Maximum fraction of bad or too long records. FEW_BAD records always may.
        max_skipped_fraction: Maximum fraction of the files or bytes of a folder skipped because of their names.
        kind: "jsonl" for files, "hub" for a data set of the hub.
        subset: Configuration of a data set of the hub.
        split: Split of a data set of the hub.
        fields: Fields of the format with another name in records, see FieldMapping.

    Raises:
        UserError: A field is malformed, or an option does not apply to this kind.
    """

    format: str
    inputs: tuple[str, ...]
    validation: tuple[str, ...]
    limits: Limits
    validation_share: float = 0.02
    max_record_bytes: int = MAX_RECORD_BYTES
    max_bad_fraction: float = MAX_BAD_FRACTION
    max_skipped_fraction: float = MAX_SKIPPED_FRACTION
    kind: Literal["jsonl", "hub"] = "jsonl"
    subset: str | None = None
    split: str = "train"
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        FieldMapping(self.fields)
        if self.kind == "hub" and len(self.validation) > 1:
            raise UserError(f"validation {' '.join(self.validation)}: give the name of one split of the data set")
        if self.kind == "hub" and self.split in self.validation:
            raise UserError(f"validation {self.split}: `split` has the same name: give another one, or `validation_share`")
        # Checks the options of each kind.
        Source(self.kind, self.inputs, self.subset, split=self.split)

    def describe(self) -> dict[str, Any]:
        """Return the record of the source in the index."""
        described: dict[str, Any] = {"kind": KIND, "format": self.format, "inputs": list(self.inputs)}
        if self.kind == "hub":
            described |= {"source": self.kind, "subset": self.subset, "split": self.split}
        if self.fields:
            described["fields"] = list(self.fields)
        if self.validation:
            described["validation"] = list(self.validation)
        return described | self.limits.options

    @path_errors()
    def skipped_files(self) -> dict[str, SkippedFiles]:
        """Return the files skipped because of their names, by input. Inputs without skipped files are not included.

        Raises:
            UserError: Inputs are missing or cannot be listed.
        """
        if self.kind == "hub":
            return {}
        inputs, validation = self._listings()
        return summarize_skipped(inputs + validation)

    def records(self, counts: RecordCounts) -> Iterator[SourceRecord]:
        """Yield every record.

        Args:
            counts: Counts of skipped records, to update.

        Raises:
            OSError: A file cannot be read.
            UserError: A file is corrupted, the hub fails, or too many records are bad.
        """
        if self.kind == "hub":
            yield from self._hub_records()
            return
        for path, split in self._files():
            for place, record in read_json(path, self.max_record_bytes, counts):
                yield SourceRecord(place, record, split)

    @property
    def _default_split(self) -> str | None:
        """Split of records in `inputs`; None if the prompt decides."""
        if self.validation:
            return "train"
        return None

    def _hub_records(self) -> Iterator[SourceRecord]:
        splits: dict[str, str | None] = {self.split: self._default_split}
        for name in self.validation:
            splits[name] = "validation"
        for name, split in splits.items():
            hub = Source("hub", self.inputs, self.subset, split=name)
            for place, record in stream_records(hub, Unit((f"{self.inputs[0]} {name}",), 0)):
                yield SourceRecord(place, record, split)

    def _files(self) -> list[tuple[str, str | None]]:
        """Return the files with the split of their records."""
        inputs, validation = self._listings()
        files = listed_files(inputs, max_skipped_fraction=self.max_skipped_fraction)
        held_out = listed_files(validation, "validation", max_skipped_fraction=self.max_skipped_fraction)
        check_distinct(files + held_out, "validation")
        splits = [(path, self._default_split) for path in files]
        splits += [(path, "validation") for path in held_out]
        return splits

    def _listings(self) -> tuple[list[Listing], list[Listing]]:
        """List the files of the inputs, and of the validation split's inputs."""
        return list_inputs(self.inputs, *JSON_LINES), list_inputs(self.validation, *JSON_LINES, option="validation")


@dataclass
class ExampleCounts(RecordCounts):
    """Counts of records and examples so far.

    Attributes:
        examples: Number of examples.
        cut: Sums of `Example.counts`.
        dropped: Number of dropped records by the reason of RecordDropped.
        first_dropped: Place of the first record of each reason.
    """

    examples: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    first_dropped: dict[str, str] = field(default_factory=dict)

    def recorded(self) -> dict[str, int]:
        """Return the counts for the index."""
        counts = dict(self.cut)
        for reason, count in self.dropped.items():
            counts[f"dropped: {reason}"] = count
        counts[BAD] = self.bad
        counts[TOO_LONG] = self.too_long
        return {name: count for name, count in counts.items() if count}
