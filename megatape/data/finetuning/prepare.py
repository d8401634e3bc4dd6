"""From files of records to a data directory of examples: all or nothing."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatape.data.finetuning.example_folder import ExampleFolder
from megatape.data.finetuning.format import Example, Format, Limits, RecordDropped
from megatape.data.io.records import RecordCounts, check_max_record_bytes, read_records
from megatape.data.io.remote import find_files
from megatape.data.shards.index import Index
from megatape.data.shards.writer import check_share, split_of
from megatape.data.sources.limits import MAX_RECORD_BYTES
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError, path_errors
from megatape.files import new_folder
from megatape.registry import FORMATS

KIND = "finetuning"


@dataclass(frozen=True)
class ExampleSource:
    """Where examples come from, and how long they may be.

    Attributes:
        format: A name of FORMATS.
        inputs: Files and folders of lines of JSON.
        validation: Those of the validation split; empty: a share of `inputs`.
        limits: Of an example.
        validation_share: Which share; examples with the same prompt are kept together.
        max_record_bytes: Longer lines are skipped.

    Raises:
        UserError: The share is nothing or everything.
    """

    format: str
    inputs: tuple[str, ...]
    validation: tuple[str, ...]
    limits: Limits
    validation_share: float = 0.02
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        check_max_record_bytes(self.max_record_bytes)
        if not self.validation:
            check_share(self.validation_share)

    def describe(self) -> dict[str, Any]:
        """What the index records."""
        validation = {"validation": list(self.validation)} if self.validation else {}
        return {"kind": KIND, "format": self.format, "inputs": list(self.inputs)} | validation | self.limits.options


@dataclass
class ExampleCounts(RecordCounts):
    """Records and examples so far.

    Attributes:
        examples: Number of examples.
        cut: By the name in Example.counts.
        dropped: Records by the reason of RecordDropped.
        first_dropped: File and line of the first record of each reason.
    """

    examples: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    first_dropped: dict[str, str] = field(default_factory=dict)

    def add_dropped(self, record_location: str, reason: str) -> None:
        self.dropped[reason] += 1
        self.first_dropped.setdefault(reason, record_location)

    def recorded(self) -> dict[str, int]:
        """What the index keeps."""
        skipped = {"bad records": self.bad, "records too long to read": self.too_long}
        dropped = {f"dropped: {reason}": count for reason, count in self.dropped.items()}
        return {name: count for name, count in {**self.cut, **dropped, **skipped}.items() if count}


@path_errors()
def prepare_examples(
    source: ExampleSource, output: Path, tokenizer: Tokenizer, progress: Callable[[ExampleCounts, int], None]
) -> tuple[Index, ExampleCounts, list[str]]:
    """Write a data directory of examples, or nothing if an error is raised.

    Args:
        source: Of the records.
        output: The data directory.
        tokenizer: Of the model.
        progress: Called with the counts and the number of tokens so far.

    Returns:
        The index, the counts, and the notes of the format.

    Raises:
        UserError, FileNotFoundError: The records or the format do not fit.
        FileExistsError: `output` exists.
    """
    form: Format = FORMATS[source.format].load()(tokenizer, source.limits)
    counts, num_tokens = ExampleCounts(), 0
    with new_folder(output) as directory:
        folder = ExampleFolder(directory, tokenizer)
        for split, example in _examples(source, form, counts):
            folder.add(split, example)
            num_tokens += len(example.ids)
            counts.examples += 1
            counts.cut += example.counts
            if counts.examples % 100 == 0:
                progress(counts, num_tokens)
        progress(counts, num_tokens)
        if empty := folder.empty_split():
            raise UserError(_nothing(empty, source, counts))
        share = 0.0 if source.validation else source.validation_share
        index = folder.close(source.describe(), share, counts.recorded())
    return index, counts, form.notes


def _examples(source: ExampleSource, form: Format, counts: ExampleCounts) -> Iterator[tuple[str, Example]]:
    """Split and example of every record that gives one."""
    files = [(path, None) for path in find_files(source.inputs, "*.jsonl", "*.jsonl.gz")]
    held_out = [(path, "validation") for path in find_files(source.validation, "*.jsonl", "*.jsonl.gz", option="validation")]
    for path, split in [*files, *held_out]:
        for location, record in read_records(path, source.max_record_bytes, counts):
            try:
                if not isinstance(record, dict):
                    raise RecordError(f"{record!r:.40} is not an object")
                example = form.example(record)
            except RecordDropped as reason:
                counts.add_dropped(location, str(reason))
            except RecordError as error:
                counts.add_bad(location, str(error))
            except UserError as error:  # not of this record alone
                raise UserError(f"{location}: {error}") from None
            else:
                yield split or ("train" if source.validation else split_of(example.prompt, source.validation_share)), example


def _nothing(split: str, source: ExampleSource, counts: ExampleCounts) -> str:
    seen = f"{counts.examples} examples, {sum(counts.dropped.values())} records dropped, {counts.bad} bad"
    first = counts.bad_examples[:1] + [f"{location}: {reason}" for reason, location in counts.first_dropped.items()][:1]
    if first:
        seen += f"; the first: {'; '.join(first)}"
    share = "" if source.validation else f", or change --validation-share {source.validation_share}"
    return f"the {split} split got no example ({seen}): give more or other records{share}"
