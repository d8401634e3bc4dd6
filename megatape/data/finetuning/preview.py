"""Examples as text: every token with its id, and which of them are learned; and the content of a data directory of them."""

from collections.abc import Iterator
from pathlib import Path

from megatape.data.finetuning.format import Example
from megatape.data.shards.entries import Index
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.data.training.packing import ExampleDataset
from megatape.utils.targets import target_mask
from megatape.utils.units import plural

LEGEND = "+ learned; each token as: id 'text'"
LINE_TOKENS = 10  # at most


def show_example(example: Example, tokenizer: Tokenizer) -> Iterator[str]:
    """Yields lines of tokens, those that are learned after a plus. A line ends where one of the text or learning does."""
    learned = {place for begin, end in example.answers for place in range(begin, end)}
    before = tokenizer.encode("a")  # without which a leading space may be dropped
    start = tokenizer.decode(before)
    cells = list[str]()
    for place, token in enumerate(example.ids):
        # Decoding drops special tokens.
        text = tokenizer.decode([*before, token]).removeprefix(start) or str(tokenizer.piece(token))
        cells.append(f"{token} {text!r}")
        is_learned = place in learned
        is_last = place + 1 == len(example.ids)
        if "\n" in text or len(cells) == LINE_TOKENS or is_learned != (place + 1 in learned) or is_last:
            yield f"{'+' if is_learned else ' '} {' │ '.join(cells)}"
            cells = []


def describe_examples(directory: Path, index: Index) -> Iterator[str]:
    """Yields lines. Sequences have the length that was given to the preparation."""
    length = index.source["sequence_length"]
    for name, answers in index.answers.items():
        tokens = index.splits[name].tokens
        yield (
            f"{name}: {plural(answers.examples, 'example')}, {tokens:,} tokens, of which {answers.tokens:,} in answers are "
            f"learned; the longest example has {answers.longest:,}"
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
