"""Prepares records as a data directory of examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from megatape.data.counts import check_bad_records
from megatape.data.finetuning.example_folder import ExampleFolder
from megatape.data.finetuning.example_source import ExampleCounts, ExampleSource
from megatape.data.finetuning.fields import FieldMapping
from megatape.data.finetuning.format import Example, Format, RecordDropped
from megatape.data.shards.entries import Index
from megatape.data.shards.hashes import are_held_out, document_hash, table_hashes
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError, flag, marked_message, path_errors
from megatape.registry import FORMATS
from megatape.utils.files.atomic import new_folder
from megatape.utils.text.units import plural

# Name of this count in the index.
SKIPPED_FILES = "files skipped because of their names"
# Progress callback, called with the counts and the number of tokens so far.
OnExamples = Callable[[ExampleCounts, int], None]
# Number of examples between calls of OnExamples.
EXAMPLES_PER_CALL = 100


class SplitExample(NamedTuple):
    """Example assigned to a split.

    Attributes:
        location: Location of the record in the source.
        split: Split name.
        example: The example.
    """

    location: str
    split: str
    example: Example


class _WrittenExamples(NamedTuple):
    folder: ExampleFolder
    counts: ExampleCounts


@dataclass
class PromptHashes:
    """Assigns prompts to splits by hash.

    Attributes:
        held_out: Hash of a prompt that always goes to the validation split.
        lowest: Lowest hash so far.
        highest: Highest hash so far.
    """

    held_out: int | None = None
    lowest: int | None = None
    highest: int | None = None

    def split(self, prompt: str, validation_share: float) -> str:
        """Return the split of a prompt."""
        hashes = table_hashes([document_hash(prompt.encode())])
        number = hashes.item()
        if self.lowest is None or number < self.lowest:
            self.lowest = number
        if self.highest is None or number > self.highest:
            self.highest = number
        if number == self.held_out or are_held_out(hashes, validation_share).item():
            return "validation"
        return "train"


@path_errors()
def prepare_examples(
    source: ExampleSource, output: Path, tokenizer: Tokenizer, progress: OnExamples
) -> tuple[Index, ExampleCounts, list[str]]:
    """Write a data directory of examples, or nothing if an error is raised.

    Args:
        source: Source of the records.
        output: Data directory to write.
        tokenizer: Tokenizer of the model to fine-tune.
        progress: Progress callback.

    Returns:
        Index of the data directory, counts, and notes of the format.

    Raises:
        UserError, FileNotFoundError: The records or the format do not fit.
        FileExistsError: `output` exists.
    """
    form: Format = FORMATS[source.format].load()(tokenizer, source.limits)
    with new_folder(output) as directory:
        prompts = PromptHashes()
        folder, counts = _write_examples(source, form, prompts, directory, tokenizer, progress)
        if not source.validation and not folder.writers["validation"].examples and prompts.lowest != prompts.highest:
            form.notes.append(
                f"a validation share of {source.validation_share} selects none of the prompts: one of them is held out"
            )
            for path in directory.iterdir():
                path.unlink()
            prompts.held_out = prompts.lowest
            folder, counts = _write_examples(source, form, prompts, directory, tokenizer, progress)
        for split, writer in folder.writers.items():
            if not writer.examples:
                raise UserError(_empty_split(split, source, counts))

        validation_share = source.validation_share
        if source.validation:
            validation_share = 0.0
        recorded = counts.recorded()
        num_skipped_files = sum(files.files for files in source.skipped_files().values())
        if num_skipped_files:
            recorded[SKIPPED_FILES] = num_skipped_files
        index = folder.close(source.describe(), validation_share, recorded)
    return index, counts, form.notes


def _write_examples(
    source: ExampleSource, form: Format, prompts: PromptHashes, directory: Path, tokenizer: Tokenizer, progress: OnExamples
) -> _WrittenExamples:
    """Write all examples into a directory, but not its index."""
    folder = ExampleFolder(directory, tokenizer)
    counts = ExampleCounts()
    num_tokens = 0
    for _, split, example in read_examples(source, form, counts, prompts):
        folder.writers[split].add(example)
        num_tokens += len(example.ids)
        if counts.examples % EXAMPLES_PER_CALL == 0:
            progress(counts, num_tokens)
    progress(counts, num_tokens)
    return _WrittenExamples(folder, counts)


def read_examples(
    source: ExampleSource, form: Format, counts: ExampleCounts, prompts: PromptHashes | None = None
) -> Iterator[SplitExample]:
    """Yield the examples, skipping records that give none.

    Args:
        source: Source of the records.
        form: Format of the records.
        counts: Counts, updated while reading.
        prompts: Prompt hashes, updated while reading. None: a new object.

    Raises:
        UserError: Too many records are bad.
    """
    mapping = FieldMapping(source.fields, form.reads)
    prompts = prompts or PromptHashes()
    for location, value, split in source.records(counts):
        try:
            if not isinstance(value, dict):
                raise RecordError(f"{value!r:.40} is not an object")
            example = form.example(mapping.apply(value))
        except RecordDropped as reason:
            counts.dropped[str(reason)] += 1
            counts.first_dropped.setdefault(str(reason), location)
        except RecordError as error:
            counts.add_bad(location, str(error))
        except UserError as error:
            # The error concerns more than this record.
            raise UserError(f"{location}: {marked_message(error)}") from None
        else:
            counts.examples += 1
            counts.cut += example.counts
            if split is None:
                split = prompts.split(example.prompt, source.validation_share)
            yield SplitExample(location, split, example)
    num_read = counts.examples + counts.dropped.total() + counts.skipped
    check_bad_records(counts, num_read, source.max_bad_fraction)


def _empty_split(split: str, source: ExampleSource, counts: ExampleCounts) -> str:
    """Return the message about a split without examples."""
    seen = f"{plural(counts.examples, 'example')}, {plural(counts.dropped.total(), 'record')} dropped, {counts.bad} bad"
    examples = counts.bad_examples[:1]
    for reason, location in counts.first_dropped.items():
        examples.append(f"{location}: {reason}")
        break
    if examples:
        seen += f"; the first: {'; '.join(examples)}"
    remedy = "give more or other records"
    if not source.validation:
        remedy += f", or change {flag('validation_share')} {source.validation_share}"
    return f"the {split} split got no example ({seen}): {remedy}"
