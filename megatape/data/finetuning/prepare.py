"""From files of records to a data directory of examples, tokens in shards as of any data: all or nothing."""

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from megatape.data.counts import RecordCounts, check_bad_records
from megatape.data.finetuning.prompt_format import Example, FieldMapping, Format, Limits, RecordDropped
from megatape.data.io.inputs import check_distinct, list_inputs, listed_files
from megatape.data.io.json_array import read_json
from megatape.data.io.listing import Listing, SkippedFiles, summarize_skipped
from megatape.data.io.records import JSON_LINES
from megatape.data.shards.entries import SPLITS, Answers, Index, Split
from megatape.data.shards.hashes import document_hash, splits_of, table_hashes
from megatape.data.shards.index import build_index
from megatape.data.shards.writer import SplitWriter, entropy
from megatape.data.sources.hub import stream_records
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES, MAX_SKIPPED_FRACTION
from megatape.data.sources.source import Source
from megatape.data.sources.units import Unit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError, path_errors
from megatape.registry import FORMATS
from megatape.utils.files import create_file, new_folder
from megatape.utils.units import plural


class ExampleFolder:
    """Writes examples of both splits, and at the end the index.

    Attributes:
        writers: By split.
    """

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        self._directory = directory
        self._tokenizer = tokenizer
        self.writers = {split: ExampleWriter(directory, split, tokenizer) for split in SPLITS}

    def close(self, source: dict[str, Any], validation_share: float = 0.0, counts: Mapping[str, int] | None = None) -> Index:
        """Write the rest and the index, and return it.

        Args:
            source: Description of where the examples come from.
            validation_share: Share of the validation split; 0 if it was chosen otherwise.
            counts: What preparation skipped, cut and dropped.
        """
        written = {split: writer.close() for split, writer in self.writers.items()}
        return build_index(
            self._directory,
            self._tokenizer,
            source=source,
            validation_share=validation_share,
            splits={split: content for split, (content, _) in written.items()},
            answers={split: answers for split, (_, answers) in written.items()},
            counts=dict(counts or {}),
        )


class ExampleWriter:
    """Collects the examples of a split.

    Attributes:
        examples: Number of examples.
    """

    def __init__(self, directory: Path, split: str, tokenizer: Tokenizer) -> None:
        self._path = directory / f"{split}-answers.npy"
        self._tokens = SplitWriter(directory, split, tokenizer.vocab_size, tokenizer.eos_id)
        self._answers: list[tuple[int, int, int]] = []
        self._learned = np.zeros(tokenizer.vocab_size, np.int64)  # how often each token is a target
        self._num_tokens = self._longest = self.examples = 0

    def add(self, example: Example) -> None:
        """Append an example."""
        ids = np.array(example.ids)
        for begin, end in example.answers:
            self._answers.append((self.examples, self._num_tokens + begin, self._num_tokens + end))
            np.add.at(self._learned, ids[begin:end], 1)
        self._tokens.add(ids, text_bytes=0)
        self._num_tokens += ids.size
        self._longest = max(self._longest, ids.size)
        self.examples += 1

    def close(self) -> tuple[Split, Answers]:
        """Write the rest and return the split's parts of the index."""
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.array(self._answers, np.int64), version=(1, 0), allow_pickle=False)
        with create_file(self._path) as file:
            file.write(stream.getvalue())
        return self._tokens.close(), Answers(
            file=self._path.name,
            sha256=hashlib.sha256(stream.getvalue()).hexdigest(),
            examples=self.examples,
            tokens=int(self._learned.sum()),
            longest=self._longest,
            unigram_entropy=entropy(self._learned),
        )


KIND = "finetuning"
SKIPPED_FILES = "files skipped because of their names"  # Name of a count in the index.


@dataclass(frozen=True)
class ExampleSource:
    """Where examples come from, and how long they may be.

    Attributes:
        format: A name of FORMATS.
        inputs: Files and folders with lines of JSON, or files with one JSON array; or the name of one data set of the hub.
        validation: Inputs of the validation split, or the name of that split of the data set; empty: a share of `inputs`.
        limits: Limits of an example.
        validation_share: Share of the prompts to hold out, at least one prompt. Examples with the same prompt stay together.
        max_record_bytes: Longer lines are skipped.
        max_bad_fraction: Fraction of the records that may be bad or too long. FEW_BAD always may.
        max_skipped_fraction: Fraction of the files or bytes of a folder that may be skipped because of their names.
        kind: Lines of JSON, or a data set of the hub.
        subset: Configuration of a data set of the hub.
        split: Split of it.
        fields: Fields of the format that have another name in records, as FieldMapping takes them.

    Raises:
        UserError: A field is malformed, or an option is not for this kind.
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
        Source(self.kind, self.inputs, self.subset, split=self.split)  # checks which options each kind has

    def describe(self) -> dict[str, Any]:
        """The source that the index records."""
        validation = {"validation": list(self.validation)} if self.validation else {}
        hub = {"source": self.kind, "subset": self.subset, "split": self.split} if self.kind == "hub" else {}
        fields = {"fields": list(self.fields)} if self.fields else {}
        described = {"kind": KIND, "format": self.format, "inputs": list(self.inputs)}
        return described | hub | fields | validation | self.limits.options

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

    def _listings(self) -> tuple[list[Listing], list[Listing]]:
        """List the files of the inputs, and of the validation split's inputs."""
        return list_inputs(self.inputs, *JSON_LINES), list_inputs(self.validation, *JSON_LINES, option="validation")

    def records(self, counts: RecordCounts) -> Iterator[tuple[str, Any, str]]:
        """Place, value and split of every record; the split is empty where the prompt decides.

        Raises OSError, or UserError for a corrupted file, a hub that fails, or too many bad records.
        """
        first = "train" if self.validation else ""
        if self.kind == "hub":
            for name, split in ({self.split: first} | dict.fromkeys(self.validation, "validation")).items():
                hub = Source("hub", self.inputs, self.subset, split=name)
                for place, record in stream_records(hub, Unit((f"{self.inputs[0]} {name}",), 0)):
                    yield place, record, split
            return
        inputs, validation = self._listings()
        max_fraction = self.max_skipped_fraction
        files = [(path, first) for path in listed_files(inputs, max_skipped_fraction=max_fraction)]
        held_out_files = listed_files(validation, "validation", max_skipped_fraction=max_fraction)
        held_out = [(path, "validation") for path in held_out_files]
        check_distinct([path for path, _ in files + held_out], "validation")
        for path, split in files + held_out:
            for place, record in read_json(path, self.max_record_bytes, counts):
                yield place, record, split


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

    def recorded(self) -> dict[str, int]:
        """The counts that the index keeps."""
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
    with new_folder(output) as directory:
        prompts = PromptHashes()
        folder, counts = _write_examples(source, form, directory, tokenizer, progress, prompts)
        if not source.validation and not folder.writers["validation"].examples and prompts.lowest != prompts.highest:
            form.notes.append(
                f"a validation share of {source.validation_share} selects none of the prompts: one of them is held out"
            )
            for path in directory.iterdir():
                path.unlink()
            prompts.held_out = prompts.lowest
            folder, counts = _write_examples(source, form, directory, tokenizer, progress, prompts)
        for split, writer in folder.writers.items():
            if not writer.examples:
                raise UserError(_nothing(split, source, counts))
        share = 0.0 if source.validation else source.validation_share
        num_skipped_files = sum(files.files for files in source.skipped_files().values())
        skipped = {SKIPPED_FILES: num_skipped_files} if num_skipped_files else {}
        index = folder.close(source.describe(), share, counts.recorded() | skipped)
    return index, counts, form.notes


@dataclass
class PromptHashes:
    """Assigns prompts to the training or the validation split, by their hashes.

    Attributes:
        held_out: Hash of a prompt that is always in the validation split.
        lowest: Lowest hash so far.
        highest: Highest hash so far.
    """

    held_out: int | None = None
    lowest: int | None = None
    highest: int | None = None

    def split(self, prompt: str, validation_share: float) -> str:
        """Return the split of a prompt."""
        (number,) = table_hashes([document_hash(prompt.encode())])
        self.lowest = number if self.lowest is None else min(number, self.lowest)
        self.highest = number if self.highest is None else max(number, self.highest)
        if number == self.held_out:
            return "validation"
        return splits_of([number], validation_share)[0]


def _write_examples(
    source: ExampleSource,
    form: Format,
    directory: Path,
    tokenizer: Tokenizer,
    progress: Callable[[ExampleCounts, int], None],
    prompts: PromptHashes,
) -> tuple[ExampleFolder, ExampleCounts]:
    """Write the examples of all records, but not the index.

    Args:
        source: Source of the records.
        form: Format of the records.
        directory: Folder for the examples.
        tokenizer: Tokenizer of the model.
        progress: See `prepare_examples`.
        prompts: Hashes of prompts, to update.

    Returns:
        The folder and the counts.

    Raises:
        UserError: Too many records are bad.
    """
    counts = ExampleCounts()
    num_tokens = 0
    folder = ExampleFolder(directory, tokenizer)
    for _, split, example in read_examples(source, form, counts, prompts):
        folder.writers[split].add(example)
        num_tokens += len(example.ids)
        if counts.examples % 100 == 0:
            progress(counts, num_tokens)
    progress(counts, num_tokens)
    return folder, counts


def read_examples(
    source: ExampleSource, form: Format, counts: ExampleCounts, prompts: PromptHashes | None = None
) -> Iterator[tuple[str, str, Example]]:
    """Yield place, split and example of every record that gives one. Raises UserError if too many records are bad."""
    mapping = FieldMapping(source.fields, form.reads)
    prompts = prompts or PromptHashes()
    for place, record, split in source.records(counts):
        try:
            if not isinstance(record, dict):
                raise RecordError(f"{record!r:.40} is not an object")
            example = form.example(mapping.apply(record))
        except RecordDropped as reason:
            counts.dropped[str(reason)] += 1
            counts.first_dropped.setdefault(str(reason), place)
        except RecordError as error:
            counts.add_bad(place, str(error))
        except UserError as error:  # not of this record alone
            raise UserError(f"{place}: {error}") from None
        else:
            counts.examples += 1
            counts.cut += example.counts
            yield place, split or prompts.split(example.prompt, source.validation_share), example
    check_bad_records(counts, counts.examples + counts.dropped.total() + counts.skipped, source.max_bad_fraction)


def _nothing(split: str, source: ExampleSource, counts: ExampleCounts) -> str:
    seen = f"{plural(counts.examples, 'example')}, {plural(sum(counts.dropped.values()), 'record')} dropped, {counts.bad} bad"
    first = counts.bad_examples[:1] + [f"{location}: {reason}" for reason, location in counts.first_dropped.items()][:1]
    if first:
        seen += f"; the first: {'; '.join(first)}"
    share = "" if source.validation else f", or change --validation-share {source.validation_share}"
    return f"the {split} split got no example ({seen}): give more or other records{share}"
