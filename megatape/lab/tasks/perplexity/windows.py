"""Windows of a text. Their last tokens are scored."""

from dataclasses import dataclass, field

import numpy as np

from megatape.errors import UserError, flag
from megatape.lab.tasks.engine.lengths import equal_lengths
from megatape.lab.tasks.engine.model import ModelOutline

# Stride of the paper's windows, and the default for sliding windows.
AUTHORS_STRIDE = 256
# Maximum number of tokens in a forward pass. Its logits are [4096, V].
BATCH_TOKENS = 2**12


@dataclass(frozen=True)
class Window:
    """A window of the text.

    Attributes:
        length: Context length in tokens.
        begin: The first token's index in the text.
        tokens: Ids, int64 [N + 1]. The last N are predicted.
        num_scored: Number of scored tokens, the last ones.
        text_bytes: Number of bytes scored by all windows with this length, None if any token is scored twice.
    """

    length: int
    begin: int
    tokens: np.ndarray
    num_scored: int
    text_bytes: int | None = field(compare=False)


def cut_windows(tokens: np.ndarray, mode: str, length: int, longest: int, stride: int = AUTHORS_STRIDE) -> list[Window]:
    """Cut a text into windows.

    Args:
        tokens: Text ids.
        mode: Mode of the task.
        length: Window length in tokens.
        longest: Maximum window length on this text.
        stride: Number of tokens between windows, in mode "sliding".

    Raises:
        UserError: The stride or the lengths do not suit the mode.
    """
    # Number of predicted tokens in a window.
    size = length
    num_scored = length
    if mode == "authors":
        # The paper's windows have L tokens, and so L - 1 predictions.
        size = length - 1
        num_scored = length - 1
        begins = range(0, tokens.size - length + 1, AUTHORS_STRIDE)
    elif mode == "sliding":
        if not 1 <= stride <= length:
            raise UserError(f"{flag('stride')} is {stride}: give 1 to the shortest of {flag('lengths')} ({length} is less)")
        # At every length, windows end at longest, longest + stride, ..., so that all lengths score the same tokens.
        begins = range(longest - length, tokens.size - length, stride)
        num_scored = stride
    else:
        if longest % length:
            raise UserError(
                f"{flag('lengths')}: {length} does not divide {longest}, so not all lengths would score the same tokens: give "
                f"lengths that divide the longest, or {flag('mode')} sliding"
            )
        begins = range(0, (tokens.size - 1) // longest * longest, length)
    return [Window(length, begin, tokens[begin : begin + size + 1], num_scored, None) for begin in begins]


def count_scored_bytes(model: ModelOutline, tokens: np.ndarray, windows: list[Window]) -> int | None:
    """Count the bytes scored by the windows. Return None if any token is scored twice."""
    first = windows[0]
    last = windows[-1]
    begin = first.begin + first.tokens.size - first.num_scored
    end = last.begin + last.tokens.size
    if len(windows) * first.num_scored != end - begin:
        return None
    text = model.tokenizer.decode(tokens[begin:end].tolist(), skip_special_tokens=True)
    return len(text.encode())


def batched(windows: list[Window]) -> list[list[Window]]:
    """Split windows into batches of equal length."""
    return equal_lengths(windows, lambda window: window.length, BATCH_TOKENS)
