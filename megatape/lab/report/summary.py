"""Figures and an example of a small run, which launch/quickstart.py shows at its end."""

import gzip
import math
from pathlib import Path

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.hf.loading import load_trained
from megatape.run_folder import RunFolder, read_steps

# tokens
PROMPT = 64
CONTINUATION = 24
LINES = 4  # shown of a continuation


def summary(run: str, data: str, exported: str) -> str:
    """The model beside the unigram and gzip on the validation text, and its continuation beside the true one."""
    return "\n".join([*figures(Path(run), Path(data)), *example(Path(data), Path(exported))])


def figures(run: Path, data: Path) -> list[str]:
    """Bits per byte of the validation text, lower is better."""
    split = load_index(data).splits["validation"]
    stored = StoredSplit(data, "validation")
    text = stored.tokenizer().decode(stored.stream(0, stored.num_tokens)).encode()
    steps = list(read_steps(RunFolder(run).metrics))
    loss = next(step["validation_loss"] for step in reversed(steps) if step.get("validation_loss") is not None)
    bits = split.tokens / split.text_bytes / math.log(2)  # per byte, of a nat per token
    rows = [
        ("token frequencies", split.unigram_entropy * bits),
        ("gzip -9", 8 * len(gzip.compress(text, 9)) / len(text)),
        ("this model", loss * bits),
    ]
    return ["bits per byte of text that it was not trained on:", *(f"  {name:<20}{value:.2f}" for name, value in rows)]


def example(data: Path, exported: Path) -> list[str]:
    """The likeliest continuation of text from the middle of the validation split."""
    split = StoredSplit(data, "validation")
    tokenizer = split.tokenizer()
    first = split.num_tokens // 2
    prompt, true = (split.stream(first + begin, first + end) for begin, end in ((0, PROMPT), (PROMPT, PROMPT + CONTINUATION)))
    with load_trained(exported) as loaded:
        (found,) = loaded.continuations([prompt.tolist()], CONTINUATION)
    before = "\n".join(tokenizer.decode(prompt).splitlines()[-3:])
    after = ("\n".join(tokenizer.decode(ids).splitlines()[:LINES]) for ids in (true, found))
    return ["after this text:", before, "it goes on:", next(after), "by the model:", next(after)]
