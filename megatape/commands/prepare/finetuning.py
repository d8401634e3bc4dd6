"""Tokenizes prompts and answers into a data directory. Only the answers are learned."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator

from megatape.commands.cli.data_messages import report_skipped, report_skipped_files, report_unexportable
from megatape.commands.options.data_options import HeldOutOptions, HubOptions, RecordLimitOptions
from megatape.commands.options.shared_options import descriptions
from megatape.config.kinds import Registered
from megatape.errors import UserError, flag
from megatape.registry import FORMATS
from megatape.utils.values.options import Count, option

if TYPE_CHECKING:
    from megatape.data.finetuning.example_source import ExampleCounts, ExampleSource
    from megatape.data.tokenizers.tokenizer import Tokenizer

EXAMPLE = "megatape prepare finetuning --format chat --input chats.jsonl --tokenizer DIR --sequence-length 2048 --output chats"


class Options(HubOptions, RecordLimitOptions, HeldOutOptions):
    """Records with prompts and answers, and limits for samples.

    Attributes:
        output: data directory to write
        format: format of the records, see below
        source: files with lines of JSON, or a dataset on the Hugging Face hub
        input: files with lines of JSON, which may be compressed, or folders of .jsonl and .ndjson
            files; with --source hub, the name of a dataset
        validation: files and folders of the validation split; with --source hub, the name of the
            split
        fields: fields of the format that have another name or path in the records, such as
            answer=answers.text.0
        tokenizer: tokenizer of the model: a SentencePiece model, a tokenizer.json or a folder in
            transformers' format
        sequence_length: tokens per sample; no example has more than N + 1
        max_prompt_tokens: cut longer prompts (default: depends on the format)
        max_answer_tokens: cut longer answers (default: depends on the format)
        truncation: part to cut from a prompt that is too long (default: the end for scrolls_qa, the
            middle for other formats)
        dry_run: write nothing; show all tokens of the first N examples, and which of them are
            learned (3 if N is not given)
    """

    lists: ClassVar = {"formats": descriptions(FORMATS)}
    at_most_one = (("validation", "validation_share"),)

    output: Path | None = option(None, metavar="FOLDER")
    format: Annotated[str, AfterValidator(Registered(FORMATS))]
    source: Literal["jsonl", "hub"] = "jsonl"
    input: tuple[str, ...] = option(metavar="PATH")
    validation: tuple[str, ...] = option((), metavar="PATH")
    fields: tuple[str, ...] = option((), metavar="FIELD=PATH")
    tokenizer: Path = option(metavar="PATH")
    sequence_length: Count = option(metavar="N")
    max_prompt_tokens: Count | None = option(None, metavar="N")
    max_answer_tokens: Count | None = option(None, metavar="N")
    truncation: Literal["end", "middle"] | None = None
    dry_run: Count | None = option(None, metavar="N", nargs="?", const="3")


def run(options: Options) -> None:
    """Write the data directory, or show examples."""
    from tqdm import tqdm

    from megatape.data.finetuning.example_source import ExampleCounts
    from megatape.data.finetuning.prepare import prepare_examples
    from megatape.data.finetuning.preview import describe_examples
    from megatape.data.tokenizers.files import load_tokenizer

    source = _source(options)
    tokenizer = load_tokenizer(options.tokenizer)
    report_unexportable(tokenizer)
    report_skipped_files(source.skipped_files())
    if options.dry_run is not None:
        _dry_run(source, tokenizer, options.dry_run)
        return
    if options.output is None:
        raise UserError(f"{flag('output')} is missing: name the data directory to write, or give {flag('dry_run')}")
    with tqdm(desc="examples", unit_scale=True, delay=0.5) as bar:

        def show(counts: ExampleCounts, num_tokens: int) -> None:
            bar.set_postfix_str(f"{num_tokens:,} tokens", refresh=False)
            bar.update(counts.examples - bar.n)

        index, counts, notes = prepare_examples(source, options.output, tokenizer, show)
    for line in (*notes, *describe_examples(options.output, index)):
        print(line)
    _report_dropped(counts)
    report_skipped(counts, options.max_record_bytes)
    print(f"wrote {options.output}")


def _source(options: Options) -> "ExampleSource":
    """Return the source of examples."""
    from megatape.data.finetuning.example_source import ExampleSource
    from megatape.data.finetuning.format import Limits

    limits = Limits(
        sequence_length=options.sequence_length,
        max_prompt=options.max_prompt_tokens,
        max_answer=options.max_answer_tokens,
        truncation=options.truncation,
    )
    return ExampleSource(
        format=options.format,
        kind=options.source,
        inputs=options.input,
        subset=options.subset,
        split=options.split,
        validation=options.validation,
        validation_share=options.validation_share,
        fields=options.fields,
        limits=limits,
        max_record_bytes=options.max_record_bytes,
        max_bad_fraction=options.max_bad_fraction,
        max_skipped_fraction=options.max_skipped_fraction,
    )


def _dry_run(source: "ExampleSource", tokenizer: "Tokenizer", num_examples: int) -> None:
    """Show all tokens of the first examples, and which of them are learned."""
    from megatape.data.finetuning.example_source import ExampleCounts
    from megatape.data.finetuning.prepare import read_examples
    from megatape.data.finetuning.preview import LEGEND, show_example

    form = FORMATS[source.format].load()(tokenizer, source.limits)
    counts = ExampleCounts()
    for line in (*form.notes, LEGEND):
        print(line)
    for location, split, example in islice(read_examples(source, form, counts), num_examples):
        num_learned = sum(end - begin for begin, end in example.answers)
        print(f"\n{location}: {len(example.ids):,} tokens, {num_learned:,} learned, {split}")
        for line in show_example(example, tokenizer):
            print(line)
    _report_dropped(counts)
    report_skipped(counts, source.max_record_bytes)


def _report_dropped(counts: "ExampleCounts") -> None:
    """Print the first record dropped for each reason."""
    for reason, location in counts.first_dropped.items():
        print(f"the first record dropped ({reason}): {location}")
