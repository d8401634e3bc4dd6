"""xPos (Sun et al., arXiv 2212.10554): RoPE whose scores also decay with distance.

Plane k of a query at position n is multiplied by zeta_k^(n / 2048), that of a key by its inverse,
zeta_k = (2k/R + 0.4) / 1.4. The published scale base is 512; 2048 is that of the TAPE authors' code.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.rotation import rotate
from megatape.data.training.positions import Positions
from megatape.encodings.encoding import Encoding, Features
from megatape.encodings.rope import STATE_DTYPE, rotary_state, rotated_size

SCALE_BASE = 2048


class XPos(Encoding):
    """The state is constant, [B, N, 1, 2R]: the rotations of queries, scaled up, then those of keys, scaled down.

    score(i, j) = sum over planes k of zeta_k^((i - j) / 2048) (q_ik turned by i theta_k) . (k_jk turned by j theta_k) / sqrt R
    """

    def positions(self, random_offset: bool) -> Positions:
        return Positions()  # an offset would only push the scales towards the limits of float32

    def state(self, position_ids: Tensor) -> Tensor:
        config = self.config
        rotated = rotated_size(config)
        e = rotary_state(position_ids, config.head_dim, config.rotary_base, rotated=rotated)
        fraction = torch.arange(0, rotated, 2, dtype=torch.float64, device=position_ids.device) / rotated
        # The scales cancel except for the distance, so any origin works; the middle keeps them smallest.
        power = (position_ids - config.max_positions // 2).to(torch.float64)[..., None] / SCALE_BASE
        scale = ((fraction + 0.4) / 1.4) ** power
        scale = F.pad(scale, (0, (config.head_dim - rotated) // 2), value=1.0).repeat(1, 1, 2)[:, :, None]
        return torch.cat([e * scale, e / scale], dim=-1).to(STATE_DTYPE)

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None, features: Features) -> tuple[Tensor, Tensor]:
        assert state is not None
        of_queries, of_keys = state.chunk(2, dim=-1)
        return rotate(q, of_queries).to(q.dtype), rotate(k, of_keys).to(k.dtype)
