"""Draws random positions for encodings that use them: token n gets the n-th of the sorted random positions."""

import torch
from torch import Tensor

from .configuration_tape import TapeConfig


def draw_positions(config: TapeConfig, num_positions: int, token_numbers: Tensor, length: Tensor | None) -> Tensor:
    """Draw the positions of tokens.

    Positions only depend on the seed and on how many are drawn: config.position_length, or the length of a longer text.

    Args:
        config: Configuration of the model.
        num_positions: Number of positions to draw from.
        token_numbers: Number of each token in its text, [B, N] or [1, N].
        length: Final length of each text in tokens, [B] or [1]. None if it is unknown.

    Returns:
        Positions from 0 to num_positions - 1, [B, N].

    Raises:
        ValueError: A text is longer than `num_positions`, or longer than was known when its first positions were drawn.
    """
    num_needed = token_numbers.amax(-1) + 1
    if length is None:
        # Assume that a text which starts in this call also ends in it. The length of an earlier text is unknown.
        is_new_text = token_numbers.amin(-1) == 0
        length = num_needed.where(is_new_text, 0)
    num_drawn = length.clamp(min=config.position_length)
    if (num_needed > num_drawn).any():
        raise ValueError(
            f"token {int(num_needed.max())} of a text whose first one was placed as in a text of at most "
            f"{config.position_length} (config.position_length): encoding {config.encoding} must know the length before the "
            "first token, as `generate` does without an earlier call's cache; or give the model position_length from there on"
        )
    longest = int(num_drawn.max())
    if longest > num_positions:
        raise ValueError(
            f"a text of {longest} tokens, with those to come, but encoding {config.encoding} draws different positions of 0 .. "
            f"{num_positions - 1} (2 max_position_embeddings): shorten it"
        )

    generator = torch.Generator().manual_seed(config.position_seed)
    permutation = torch.randperm(num_positions, generator=generator)
    counts, token_numbers = torch.broadcast_tensors(num_drawn[:, None], token_numbers)
    rows = []
    for count, numbers in zip(counts[:, 0].tolist(), token_numbers, strict=True):
        positions = permutation[:count].sort().values
        rows.append(positions.to(numbers.device)[numbers])
    return torch.stack(rows)
