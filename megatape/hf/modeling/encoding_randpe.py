"""RandPE (arXiv 2305.16843): rotary embedding of sorted random positions."""

import torch
from torch import Tensor

from .rotary import RotaryEncoding


class RandPE(RotaryEncoding):
    """The n-th token of a text gets the n-th of sorted random positions.

    They are always the same ones for a seed and their number: config.position_length, or as many as a longer text has.
    """

    def positions(self, position_ids: Tensor, length: Tensor | None) -> Tensor:
        config, needed = self.config, position_ids.amax(-1) + 1
        if length is None:  # then a text ends here if it begins here, and of another one nothing is known
            length = needed.where(position_ids.amin(-1) == 0, 0)
        num_drawn = length.clamp(min=config.position_length)
        if (needed > num_drawn).any():
            raise ValueError(
                f"token {int(needed.max())} of a text whose first one was placed as in a text of at most "
                f"{config.position_length} (config.position_length): RandPE must know the length before the first token, as "
                "`generate` does without an earlier call's cache; or give the model position_length from there on"
            )
        longest, limit = int(num_drawn.max()), 2 * config.max_position_embeddings
        if longest > limit:
            raise ValueError(
                f"a text of {longest} tokens, with those to come, but RandPE draws different positions of 0 .. {limit - 1} (2 "
                "max_position_embeddings): shorten it"
            )
        drawn = torch.randperm(limit, generator=torch.Generator().manual_seed(config.position_seed))
        counts, position_ids = torch.broadcast_tensors(num_drawn[:, None], position_ids)
        texts = zip(counts[:, 0].tolist(), position_ids, strict=True)
        return torch.stack([drawn[:count].sort().values.to(ids.device)[ids] for count, ids in texts])
