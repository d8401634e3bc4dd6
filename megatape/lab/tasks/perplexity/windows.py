"""Windows of a text, of which some predictions count."""

from dataclasses import dataclass, field

import numpy as np

from megatape.errors import UserError
from megatape.lab.tasks.engine.lengths import equal_lengths
from megatape.lab.tasks.engine.model import ModelOutline

# Stride of the paper's windows, and the default for sliding windows.
AUTHORS_STRIDE = 256
# Maximum number of tokens in a forward pass, whose logits are [4096, V].
BATCH_TOKENS = 2**12


@dataclass(frozen=True)
class Window:
    """A window of the text. Only its last predictions count.

    Attributes:
        length: Context length of the window.
        begin: Index of the window's first token in the text.
        tokens: Ids, int64 [N + 1]. The last N are predicted.
        num_scored: Number of predictions that count.
        text_bytes: Bytes of the text scored by all windows of this length, None if they score a token more than once.
    """

    length: int
    begin: int
    tokens: np.ndarray
    num_scored: int
    text_bytes: int | None = field(compare=False)


def cut_windows(tokens: np.ndarray, mode: str, length: int, longest: int, stride: int = AUTHORS_STRIDE) -> list[Window]:
    """Cut a text into windows.

    Args:
        tokens: Ids of the text.
        mode: Mode of the task.
        length: Tokens of a window.
        longest: Tokens of the longest windows on this text.
        stride: Number of tokens between windows in mode "sliding".
    """
    # Predictions of a window.
    size = length
    num_scored = length
    if mode == "authors":
        # L tokens make L - 1 predictions.
        size = length - 1
        num_scored = length - 1
        begins = range(0, tokens.size - length + 1, AUTHORS_STRIDE)
    elif mode == "sliding":
        if not 1 <= stride <= length:
            raise UserError(f"stride is {stride}: give 1 to the shortest of `lengths` ({length} is less)")
        # Every length has the whole context of each block of `stride` targets, which ends at longest, longest + stride, ...
        begins = range(longest - length, tokens.size - length, stride)
        num_scored = stride
    else:
        if longest % length:
            raise UserError(
                f"lengths: {length} does not divide {longest}, so not all lengths would score the same tokens: give lengths "
                "that divide the longest, or `mode` sliding"
            )
        begins = range(0, (tokens.size - 1) // longest * longest, length)
    return [Window(length, begin, tokens[begin : begin + size + 1], num_scored, None) for begin in begins]


def count_scored_bytes(model: ModelOutline, tokens: np.ndarray, windows: list[Window]) -> int | None:
    """Count the bytes of the text that the windows score. Return None if they score a token more than once."""
    first = windows[0]
    last = windows[-1]
    begin = first.begin + first.tokens.size - first.num_scored
    end = last.begin + last.tokens.size
    if len(windows) * first.num_scored != end - begin:
        return None
    text = model.tokenizer.decode(tokens[begin:end].tolist(), skip_special_tokens=True)
    return len(text.encode())


def batched(windows: list[Window]) -> list[list[Window]]:
    """Divide windows into batches of equal length."""
    return equal_lengths(windows, lambda window: window.length, BATCH_TOKENS)
