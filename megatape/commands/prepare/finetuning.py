"""megatape prepare finetuning: tokenizes prompts and answers.

Example: `megatape prepare finetuning --format chat --input chats.jsonl --tokenizer DIR --sequence-length 2048 --output chats`.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from megatape.commands.options import (
    HeldOutOptions,
    NewDataOptions,
    RecordLimitOptions,
    describe,
    read_tokenizer,
    report_skipped,
)
from megatape.config.section import Registered
from megatape.options import option
from megatape.registry import FORMATS


class Options(NewDataOptions, RecordLimitOptions, HeldOutOptions):
    """Records of examples, and how they become samples."""

    at_most_one = (("validation", "validation_share"),)

    format: Annotated[str, AfterValidator(Registered(FORMATS))] = option(describe(FORMATS))
    input: tuple[str, ...] = option(".jsonl and .jsonl.gz files, or folders of them", metavar="PATH")
    validation: tuple[str, ...] = option("files and folders of the validation split", (), metavar="PATH")
    tokenizer: Path = option(
        "tokenizer of the model: a SentencePiece model, a tokenizer.json or a folder of transformers", metavar="PATH"
    )
    sequence_length: int = option("tokens of a sample: no example has more than N + 1", metavar="N")
    max_prompt_tokens: int | None = option("cut longer prompts (default: by the format)", None, metavar="N")
    max_answer_tokens: int | None = option("cut longer answers (default: by the format)", None, metavar="N")
    truncation: Literal["end", "middle"] | None = option(
        "part of too long prompts that is cut (default: the end for scrolls_qa, else the middle)", None
    )


def run(options: Options) -> int:
    """Write the data directory."""
    from tqdm import tqdm

    from megatape.data.finetuning.format import Limits
    from megatape.data.finetuning.prepare import ExampleCounts, ExampleSource, prepare_examples
    from megatape.data.finetuning.report import describe_examples

    limits = options.fill(Limits, max_prompt=options.max_prompt_tokens, max_answer=options.max_answer_tokens)
    source = options.fill(ExampleSource, inputs=options.input, limits=limits)
    tokenizer = read_tokenizer(options.tokenizer)
    with tqdm(desc="examples", unit_scale=True, delay=0.5) as bar:

        def show(counts: ExampleCounts, num_tokens: int) -> None:
            bar.set_postfix_str(f"{num_tokens:,} tokens", refresh=False)
            bar.update(counts.examples - bar.n)

        index, counts, notes = prepare_examples(source, options.output, tokenizer, show)
    print(*notes, *describe_examples(options.output, index), sep="\n")
    for reason, place in counts.first_dropped.items():
        print(f"the first record dropped ({reason}): {place}")
    report_skipped(counts, options.max_record_bytes)
    print(f"wrote {options.output}")
    return 0
