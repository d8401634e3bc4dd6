"""Summary of a small run, printed by launch/quickstart.py: bits per byte, and an example of generated text."""

import gzip
import math
from pathlib import Path

from megatape.data.shards.index import load_index
from megatape.data.shards.stored_split import StoredSplit
from megatape.hf.loading.load import load_trained
from megatape.run_folder import RunFolder, read_steps

# Numbers of tokens in the example.
PROMPT_TOKENS = 64
CONTINUATION_TOKENS = 24
# Maximum numbers of lines shown.
PROMPT_LINES = 3
CONTINUATION_LINES = 4


def summary(run: str, data: str, exported: str) -> str:
    """Compare the model with token frequencies and gzip on the validation text, and its continuation with the true one.

    Args:
        run: Run directory.
        data: Data directory.
        exported: Exported model folder.
    """
    return "\n".join([*figures(Path(run), Path(data)), *example(Path(data), Path(exported))])


def figures(run: Path, data: Path) -> list[str]:
    """Return lines comparing the bits per byte of validation text. Lower is better.

    Args:
        run: Run directory.
        data: Data directory.
    """
    split = load_index(data).splits["validation"]
    stored = StoredSplit(data, "validation")
    text = stored.tokenizer().decode(stored.stream(0, stored.num_tokens)).encode()
    compressed = gzip.compress(text, 9)
    losses = [step.get("validation_loss") for step in read_steps(RunFolder(run).metrics)]
    last_loss = [loss for loss in losses if loss is not None][-1]

    # Bits per byte for each nat per token.
    bits_per_byte = split.tokens / split.text_bytes / math.log(2)
    values = {
        "token frequencies": split.unigram_entropy * bits_per_byte,
        "gzip -9": 8 * len(compressed) / len(text),
        "this model": last_loss * bits_per_byte,
    }
    lines = ["bits per byte of text that it was not trained on:"]
    for name, value in values.items():
        lines.append(f"  {name:<20}{value:.2f}")
    return lines


def example(data: Path, exported: Path) -> list[str]:
    """Return lines with the greedy continuation of text from the middle of the validation split.

    Args:
        data: Data directory.
        exported: Exported model folder.
    """
    split = StoredSplit(data, "validation")
    tokenizer = split.tokenizer()
    begin = split.num_tokens // 2
    end = begin + PROMPT_TOKENS
    prompt = split.stream(begin, end)
    true = split.stream(end, end + CONTINUATION_TOKENS)
    with load_trained(exported) as model:
        (predicted,) = model.continuations([prompt.tolist()], CONTINUATION_TOKENS)

    before = tokenizer.decode(prompt).splitlines()[-PROMPT_LINES:]
    true_lines = tokenizer.decode(true).splitlines()[:CONTINUATION_LINES]
    predicted_lines = tokenizer.decode(predicted).splitlines()[:CONTINUATION_LINES]
    return [
        "after this text:",
        "\n".join(before),
        "it goes on:",
        "\n".join(true_lines),
        "by the model:",
        "\n".join(predicted_lines),
    ]
