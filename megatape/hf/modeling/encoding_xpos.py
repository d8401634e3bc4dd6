"""xPos (arXiv 2212.10554): rotary positions whose products also decay with the distance."""

import torch
from torch import Tensor

from .encoding import Encoding, Features
from .rotary import all_channels, rotary_parts, rotate

SCALE_BASE = 2048


class XPos(Encoding):
    """The state is constant: the rotations of queries, scaled up, beside those of keys, scaled down, [B, N, L, 2R]."""

    def state(self, positions: Tensor) -> Tensor:
        config = self.config
        parts = rotary_parts(config, positions)
        fraction = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device=positions.device) / config.head_dim
        # The scales cancel except for the distance, so any origin will do; in the middle they stay smallest.
        power = (positions - config.max_position_embeddings // 2).to(torch.float64)[..., None] / SCALE_BASE
        scale = ((fraction + 0.4) / 1.4) ** power
        return all_channels(config, *(part * scale for part in parts), *(part / scale for part in parts))

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        assert state is not None
        of_queries, of_keys = state.chunk(2, dim=-1)
        return rotate(q, of_queries), rotate(k, of_keys)
