"""The content of a data directory of prompts and answers, and the counts of its preparation, as text."""

from collections.abc import Iterator
from pathlib import Path

from megatape.data.shards.index import Index
from megatape.data.training.example_dataset import ExampleDataset
from megatape.targets import target_mask


def describe_examples(directory: Path, index: Index) -> Iterator[str]:
    """Yields lines. Sequences have the length that was given to the preparation."""
    length = index.source["sequence_length"]
    for name, answers in index.answers.items():
        tokens = index.splits[name].tokens
        yield (
            f"{name}: {answers.examples:,} examples, {tokens:,} tokens, of which {answers.tokens:,} in answers are learned; "
            f"the longest example has {answers.longest:,}"
        )
        alone, packed = (ExampleDataset(directory, name, length, masked) for masked in (False, True))
        yield (
            f"  sequences of {length:,} tokens: {alone.num_samples:,} of one example, {alone.filled:.1%} full; or "
            f"{packed.num_samples:,} packed, {packed.filled:.1%} full"
        )
        targets = alone.sample(0).targets
        yield f"  learned of the first: {alone.tokenizer().decode(targets[target_mask(targets)])!r:.200}"
    for what, count in index.counts.items():
        yield f"{what}: {count:,}"
