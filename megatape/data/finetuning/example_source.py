"""Reads records for fine-tuning from files or from a Hugging Face hub data set."""

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
from megatape.errors import UserError, flag, path_errors

KIND = "finetuning"


class SourceRecord(NamedTuple):
    """Record read from a source.

    Attributes:
        location: Location in the source.
        value: The record.
        split: Split of the record, or None to let the prompt decide.
    """

    location: str
    value: Any
    split: str | None


@dataclass(frozen=True)
class ExampleSource:
    """Source of examples, and limits on their length.

    Attributes:
        format: Format name in FORMATS.
        inputs: Files and folders with JSON lines, or files with one JSON array; or the name of a hub data set.
        validation: Inputs of the validation split, or its name in the hub data set; empty: a share of `inputs`.
        limits: Limits on example length.
        validation_share: Share of prompts to hold out, at least one prompt. Examples with the same prompt stay together.
        max_record_bytes: Maximum size of a line. Longer ones are skipped.
        max_bad_fraction: Maximum fraction of bad or too long records. FEW_BAD records are always tolerated.
        max_skipped_fraction: Maximum fraction of a folder's files or bytes that may be skipped because of their names.
        kind: "jsonl" for files, "hub" for a hub data set.
        subset: Configuration of the hub data set.
        split: Split of the hub data set.
        fields: Format fields with another name in records, see FieldMapping.

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
            raise UserError(f"{flag('validation')} {' '.join(self.validation)}: give the name of one split of the data set")
        if self.kind == "hub" and self.split in self.validation:
            raise UserError(
                f"{flag('validation')} {self.split}: {flag('split')} has the same name: give another one, or "
                f"{flag('validation_share')}"
            )
        # Creating a source checks the options of each kind.
        Source(self.kind, self.inputs, self.subset, split=self.split)

    def describe(self) -> dict[str, Any]:
        """Return the source's record for the index."""
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
        """Return the files skipped because of their names, by input, omitting inputs without such files.

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
            counts: Counts of skipped records, updated while reading.

        Raises:
            OSError: A file cannot be read.
            UserError: A file is corrupted, the hub fails, or too many records are bad.
        """
        if self.kind == "hub":
            yield from self._hub_records()
            return
        for path, split in self._files():
            for location, record in read_json(path, self.max_record_bytes, counts):
                yield SourceRecord(location, record, split)

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
            for location, record in stream_records(hub, Unit((f"{self.inputs[0]} {name}",), 0)):
                yield SourceRecord(location, record, split)

    def _files(self) -> list[tuple[str, str | None]]:
        """Return the files, each with the split of its records."""
        inputs, validation = self._listings()
        files = listed_files(inputs, max_skipped_fraction=self.max_skipped_fraction)
        held_out = listed_files(validation, "validation", max_skipped_fraction=self.max_skipped_fraction)
        check_distinct(files + held_out, "validation")
        splits = [(path, self._default_split) for path in files]
        splits += [(path, "validation") for path in held_out]
        return splits

    def _listings(self) -> tuple[list[Listing], list[Listing]]:
        """List the files in the inputs, and in the validation inputs."""
        return list_inputs(self.inputs, *JSON_LINES), list_inputs(self.validation, *JSON_LINES, option="validation")


@dataclass
class ExampleCounts(RecordCounts):
    """Counts of records and examples so far.

    Attributes:
        examples: Number of examples.
        cut: Sums of `Example.counts`.
        dropped: Number of dropped records by reason.
        first_dropped: Location of the first record dropped for each reason.
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
