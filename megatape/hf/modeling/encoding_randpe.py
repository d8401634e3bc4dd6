"""RandPE (arXiv 2305.16843): rotary embedding of sorted random positions."""

import torch
from torch import Tensor

from .encoding import Encoding
from .rotary import all_channels, rotary_parts, rotate


class RandPE(Encoding):
    """The n-th token gets the n-th of position_length sorted random positions, always the same ones for a seed and length."""

    def positions(self, position_ids: Tensor) -> Tensor:
        config = self.config
        if config.position_length > 2 * config.max_position_embeddings:
            raise ValueError(
                f"config.position_length is {config.position_length}, but RandPE draws different positions of 0 .. "
                f"{2 * config.max_position_embeddings - 1} (2 max_position_embeddings): lower it"
            )
        if int(position_ids.max()) >= config.position_length:
            raise ValueError(
                f"token {int(position_ids.max()) + 1} of a text, but config.position_length is {config.position_length}: "
                "RandPE spreads that many tokens over its positions; set it to the length that prompt and continuation will "
                "have, before the first token"
            )
        generator = torch.Generator().manual_seed(config.position_seed)
        drawn = torch.randperm(2 * config.max_position_embeddings, generator=generator)
        return drawn[: config.position_length].sort().values.to(position_ids.device)[position_ids]

    def state(self, positions: Tensor) -> Tensor:
        return all_channels(self.config, *rotary_parts(self.config, positions))

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        assert state is not None
        return rotate(q, state), rotate(k, state)
