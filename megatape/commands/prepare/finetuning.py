"""megatape prepare finetuning: megatape prepare finetuning --format pairs --input train.jsonl --tokenizer MODEL_DIR ..."""

import argparse
from pathlib import Path

from megatape.commands import options
from megatape.registry import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    formats = "; ".join(f"{name}: {entry.description}" for name, entry in FORMATS.items())
    parser.add_argument("--format", required=True, choices=FORMATS, help=formats)
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PATH", help=".jsonl and .jsonl.gz files, or folders of them"
    )
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument("--validation", nargs="+", default=[], metavar="PATH", help="the same, of the validation split")
    options.add_validation_share(held_out, "prompts")
    parser.add_argument(
        "--tokenizer",
        required=True,
        type=Path,
        metavar="PATH",
        help="that of the model: a SentencePiece model, a tokenizer.json or a folder of transformers",
    )
    parser.add_argument(
        "--sequence-length", required=True, type=int, metavar="N", help="of the samples: no example has more than N + 1 tokens"
    )
    parser.add_argument("--max-prompt-tokens", type=int, metavar="N", help="cut longer prompts (default: as the format has it)")
    parser.add_argument("--max-answer-tokens", type=int, metavar="N", help="cut longer answers (default: as the format has it)")
    parser.add_argument(
        "--truncation",
        choices=("end", "middle"),
        help="what too long prompts lose (default: the end for scrolls_qa, else the middle)",
    )
    options.add_record_limit(parser)
    options.add_new_data(parser)


def run(args: argparse.Namespace) -> int:
    """Write the data directory."""
    from tqdm import tqdm

    from megatape.data.finetuning.format import Limits
    from megatape.data.finetuning.prepare import ExampleCounts, ExampleSource, prepare_examples
    from megatape.data.finetuning.report import describe_examples

    limits = Limits(args.sequence_length, args.max_prompt_tokens, args.max_answer_tokens, args.truncation)
    source = ExampleSource(
        args.format, tuple(args.input), tuple(args.validation), limits, args.validation_share, args.max_record_bytes
    )
    tokenizer = options.read_tokenizer(args.tokenizer)
    with tqdm(desc="examples", unit_scale=True, delay=0.5) as bar:

        def show(counts: ExampleCounts, num_tokens: int) -> None:
            bar.set_postfix_str(f"{num_tokens:,} tokens", refresh=False)
            bar.update(counts.examples - bar.n)

        index, counts, notes = prepare_examples(source, args.output, tokenizer, show)
    print(*notes, *describe_examples(args.output, index), sep="\n")
    for reason, place in counts.first_dropped.items():
        print(f"the first record dropped ({reason}): {place}")
    options.report_skipped(counts, args.max_record_bytes)
    print(f"wrote {args.output}")
    return 0
