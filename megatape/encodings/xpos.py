"""xPos (Sun et al., arXiv 2212.10554): RoPE with scores that also decay with distance.

    score(i, j) = sum over planes k of zeta_k^((i - j) / 2048) (q_ik turned by i theta_k) . (k_jk turned by j theta_k) / sqrt R
    zeta_k = (2k/R + 0.4) / 1.4

Plane k of a query at position n is multiplied by zeta_k^(n / 2048), and plane k of a key by the inverse. The paper's scale base
is 512; we use 2048, as in the TAPE authors' code. xPos has no parameters. Shapes as in model/transformer.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.attention.rotation import rotate
from megatape.data.training.batches.positions import Positions
from megatape.encodings.encoding import Encoding, Features
from megatape.encodings.rope import STATE_DTYPE, rotary_state, rotated_size

SCALE_BASE = 2048


class XPos(Encoding):
    """Rotary embedding with decay.

    The state is constant, [B, N, 1, 2R]: rotations of queries, times their scales, then rotations of keys, over these scales.
    """

    equation = (
        "score(i, j) = sum over planes k of zeta_k^((i - j) / 2048) "
        "(q_ik turned by i theta_k) . (k_jk turned by j theta_k) / sqrt R"
    )

    def positions(self, random_offset: bool) -> Positions:
        """Return the sampler of position ids, without offset: it would only push scales towards the limits of float32."""
        return Positions()

    def state(self, position_ids: Tensor) -> Tensor:
        config = self.config
        rotated = rotated_size(config)
        e = rotary_state(position_ids, config.head_dim, config.rotary_base, rotated=rotated)  # [B, N, 1, R]

        # In scores, scales only depend on distances, so any origin works. From the middle, scales stay closest to 1.
        fraction = torch.arange(0, rotated, 2, dtype=torch.float64, device=position_ids.device) / rotated  # 2k/R
        zeta = (fraction + 0.4) / 1.4
        power = (position_ids - config.max_positions // 2).to(torch.float64)[..., None] / SCALE_BASE  # [B, N, 1]
        scale = zeta**power  # [B, N, rotated / 2]

        # Planes that do not rotate are not scaled either. A plane's cosine and sine have the same scale.
        num_still = (config.head_dim - rotated) // 2
        scale = F.pad(scale, (0, num_still), value=1.0).repeat(1, 1, 2)[:, :, None]  # [B, N, 1, R]
        return torch.cat([e * scale, e / scale], dim=-1).to(STATE_DTYPE)

    def rotate_qk(
        self,
        q: Tensor,
        k: Tensor,
        state: Tensor | None,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        assert state is not None
        query_rotations, key_rotations = state.chunk(2, dim=-1)  # [B, N, 1, R] each
        return rotate(q, query_rotations).to(q.dtype), rotate(k, key_rotations).to(k.dtype)
