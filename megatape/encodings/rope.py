"""RoPE (Su et al., arXiv 2104.09864): queries and keys are rotated by their positions, in halves as in Llama.

model.scaling changes the frequencies for longer contexts. Shapes as in model/transformer.py.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.config import ModelConfig, ScalingConfig
from megatape.data.training.positions import Positions
from megatape.encodings.encoding import Encoding

# Angles are float32 whatever the compute precision, what layers add to them is not: docs/benchmarks.md, "Precision of the
# position tensor".
STATE_DTYPE = torch.float32


def rotated_size(config: ModelConfig) -> int:
    """How many channels of a head rotate, by model.rotary_fraction."""
    return round(config.head_dim * config.rotary_fraction)


def rotary_state(
    position_ids: Tensor, head_dim: int, base: float, scaling: ScalingConfig | None = None, rotated: int | None = None
) -> Tensor:
    """Rotary embedding of `position_ids` [B, N] as a position tensor [B, N, 1, R], the same for all channels.

    Cosines of the R/2 angles n * theta_k, then their sines, computed in float64: float32 angles are
    off by 3e-4 at position 131072.

    rotated: number of channels that rotate, with the frequencies of a head of that size; the other planes stand at 1 + 0i.
    """
    thetas, size = frequencies(rotated or head_dim, base, scaling, position_ids.device)
    angles = position_ids.to(torch.float64)[..., None] * thetas
    return padded_planes(angles.cos() * size, angles.sin() * size, head_dim).to(STATE_DTYPE)[:, :, None]


def padded_planes(cosines: Tensor, sines: Tensor, head_dim: int) -> Tensor:
    """(cos | sin) of R/2 planes, from those of the first ones. The others do not rotate."""
    still = (0, head_dim // 2 - cosines.shape[-1])
    return torch.cat([F.pad(cosines, still, value=1.0), F.pad(sines, still)], dim=-1)


def frequencies(
    head_dim: int, base: float, scaling: ScalingConfig | None, device: torch.device | None = None
) -> tuple[Tensor, float]:
    """theta_k in radians per token for the R/2 planes, float64, and the modulus of the rotations (1 except for YaRN).

    They are made on `device`, since a copy from the host would make it wait for a GPU.

    Unscaled: theta_k = base^(-2k/R) (RoPE, arXiv 2104.09864).
    linear: theta_k / factor, position interpolation (arXiv 2306.15595).
    theta: base times factor^(R/(R-2)), which divides the slowest frequency by the factor and keeps the fastest ("NTK-aware").
    yarn, llama3: see `_yarn` and `_llama3`.
    """
    plane = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    if scaling is not None and scaling.kind == "theta":
        base = scaled_base(head_dim, base, scaling.factor)
    thetas = base ** (-plane / head_dim)
    if scaling is None or scaling.kind == "theta":
        return thetas, 1.0
    if scaling.kind == "linear":
        return thetas / scaling.factor, 1.0
    return _llama3(thetas, scaling) if scaling.kind == "llama3" else _yarn(thetas, head_dim, base, scaling)


def scaled_base(head_dim: int, base: float, factor: float) -> float:
    """The base that theta scaling uses instead of `base`."""
    return base * factor ** (head_dim / (head_dim - 2))


def _llama3(thetas: Tensor, scaling: Any) -> tuple[Tensor, float]:
    """Scaling of Llama 3.1, as in its authors' code and in transformers.

    Planes that turn at least high_freq_factor times within the original length keep their frequency, those that turn at most
    low_freq_factor times are interpolated, and those between are blended linearly in the number of turns.
    """
    length = scaling.original_length
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    kept = ((length * thetas / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return thetas / scaling.factor * (1 - kept) + thetas * kept, 1.0


def _yarn(thetas: Tensor, head_dim: int, base: float, scaling: Any) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071), as in its authors' code and in transformers.

    Planes that turn more than beta_fast times within the original length keep their frequency, those that turn less than
    beta_slow times are interpolated, and those between are blended linearly in the plane's index. Scores are multiplied by the
    square of attention_factor, by default 0.1 ln(factor) + 1, here as the modulus of both rotations. (The TAPE authors'
    `adayarn` blends linearly in the number of turns instead.)
    """
    length = scaling.original_length
    beta_fast = scaling.beta_fast
    beta_slow = scaling.beta_slow

    def plane_that_turns(times: float) -> float:
        return head_dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(base))

    fast = plane_that_turns(beta_fast)
    slow = plane_that_turns(beta_slow)
    if scaling.truncate:
        fast = math.floor(fast)
        slow = math.ceil(slow)
    first = max(fast, 0)
    last = min(slow, head_dim - 1)
    plane = torch.arange(head_dim // 2, dtype=torch.float64, device=thetas.device)
    interpolated = ((plane - first) / ((last - first) or 1e-3)).clamp(0, 1)
    thetas = thetas / scaling.factor * interpolated + thetas * (1 - interpolated)
    return thetas, scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1


class Rope(Encoding):
    """A constant position tensor, the same for all heads.

    score(i, j) = q_i^T R(i - j) k_j / sqrt R,  R(n) turns plane k by n 10,000^(-2k / R)
    """

    has_position_tensor = True

    def positions(self, random_offset: bool) -> Positions:
        """Offsets change only rounding; RoPE has them so that `tape` and `rope` see the same positions."""
        return Positions(max_offset=2 * self.config.max_positions if random_offset else 0)

    def state(self, position_ids: Tensor) -> Tensor:
        config = self.config
        return rotary_state(position_ids, config.head_dim, config.rotary_base, config.scaling, rotated_size(config))
