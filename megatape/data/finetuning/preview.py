"""Prints examples token by token, and summarizes a data directory of examples."""

from collections.abc import Iterator
from pathlib import Path

from megatape.data.finetuning.format import Example
from megatape.data.shards.entries import Index
from megatape.data.shards.stored_split import StoredSplit
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.datasets.example_dataset import ExampleDataset
from megatape.nn.targets import target_mask
from megatape.utils.text.units import plural

LEGEND = "+ learned; each token as: id 'text'"
# Maximum number of tokens on a line.
LINE_TOKENS = 10


def show_example(example: Example, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield lines of tokens, with a plus before learned ones. Lines also end at line breaks and at the ends of answers."""
    learned = set[int]()
    for begin, end in example.answers:
        learned.update(range(begin, end))
    # Decode each token after another one, because a leading space may be dropped otherwise.
    before = tokenizer.encode("a")
    start = tokenizer.decode(before)
    cells = list[str]()
    for index, token in enumerate(example.ids):
        # Decoding drops special tokens.
        text = tokenizer.decode([*before, token]).removeprefix(start) or str(tokenizer.piece(token))
        cells.append(f"{token} {text!r}")
        is_learned = index in learned
        next_is_learned = index + 1 in learned
        is_last = index + 1 == len(example.ids)
        if "\n" in text or len(cells) == LINE_TOKENS or is_learned != next_is_learned or is_last:
            mark = " "
            if is_learned:
                mark = "+"
            yield f"{mark} {' │ '.join(cells)}"
            cells = []


def describe_examples(directory: Path, index: Index) -> Iterator[str]:
    """Yield lines summarizing a data directory of examples, for sequences of the length given when preparing it."""
    length = index.source["sequence_length"]
    for name, answers in index.answers.items():
        tokens = index.splits[name].tokens
        yield (
            f"{name}: {plural(answers.examples, 'example')}, {tokens:,} tokens, of which {answers.tokens:,} in answers are "
            f"learned; the longest example has {answers.longest:,}"
        )
        split = StoredSplit(directory, name)
        alone = ExampleDataset(split, length)
        packed = ExampleDataset(split, length, pack_examples=True)
        yield (
            f"  sequences of {length:,} tokens: {alone.num_samples:,} of one example, {alone.filled:.1%} full; or "
            f"{packed.num_samples:,} packed, {packed.filled:.1%} full"
        )
        targets = alone.sample(0).targets
        yield f"  learned of the first: {split.tokenizer().decode(targets[target_mask(targets)])!r:.200}"
    for reason, count in index.counts.items():
        yield f"{reason}: {count:,}"
