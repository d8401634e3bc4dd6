"""RoPE (Su et al., arXiv 2104.09864, section 3): queries and keys are rotated by angles proportional to their positions.

    score(i, j) = q_i^T R(i - j) k_j / sqrt R
    R(n) turns plane k by the angle n theta_k,    theta_k = base^(-2k / R),    k = 0 .. R/2 - 1

A query turned by i theta_k and a key turned by j theta_k meet at the angle (i - j) theta_k, so scores only depend on distances.
Plane k consists of channels k and k + R/2, as in Llama. (The paper pairs neighboring channels, 2k and 2k + 1.)

RoPE has no parameters. model.scaling changes the frequencies for longer contexts. Shapes as in model/transformer.py.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.config import ModelConfig, ScalingConfig
from megatape.data.training.batches.positions import Positions
from megatape.encodings.encoding import Encoding

# Angles are float32 at any compute precision. Additions by layers have the compute precision: see docs/benchmarks.md,
# "Precision of the position tensor".
STATE_DTYPE = torch.float32


def rotated_size(config: ModelConfig) -> int:
    """Return the number of rotating channels per head, by model.rotary_fraction."""
    return round(config.head_dim * config.rotary_fraction)


def rotary_state(
    position_ids: Tensor,
    head_dim: int,
    base: float,
    scaling: ScalingConfig | None = None,
    rotated: int | None = None,
) -> Tensor:
    """Return rotary angles as a position tensor: cosines of the R/2 angles n theta_k, then their sines.

    Computed in float64: in float32, the angles would be off by 3e-4 at position 131,072.

    Args:
        position_ids: Position ids n, [B, N].
        head_dim: Head width R.
        base: Base of the frequencies.
        scaling: Scaling of the frequencies, or None.
        rotated: Number of rotating channels, by default all. They have the frequencies of a head of this width.

    Returns:
        Float32 [B, N, 1, R].
    """
    thetas, modulus = frequencies(rotated or head_dim, base, scaling, position_ids.device)
    angles = position_ids.to(torch.float64)[..., None] * thetas  # [B, N, rotated / 2]
    state = padded_planes(angles.cos() * modulus, angles.sin() * modulus, head_dim)  # [B, N, R]
    return state.to(STATE_DTYPE)[:, :, None]


def padded_planes(cosines: Tensor, sines: Tensor, head_dim: int) -> Tensor:
    """Return (cos | sin) of R/2 planes, [..., R], given those of the first ones. The others do not rotate."""
    num_still = head_dim // 2 - cosines.shape[-1]
    padded_cosines = F.pad(cosines, (0, num_still), value=1.0)
    padded_sines = F.pad(sines, (0, num_still))
    return torch.cat([padded_cosines, padded_sines], dim=-1)


def frequencies(
    head_dim: int, base: float, scaling: ScalingConfig | None, device: torch.device | None = None
) -> tuple[Tensor, float]:
    """Return the frequencies of rotary planes, and the modulus of the rotations.

    Without scaling: theta_k = base^(-2k/R) (RoPE, arXiv 2104.09864).
    linear: theta_k / factor (position interpolation, arXiv 2306.15595).
    theta: base times factor^(R/(R-2)), dividing the slowest frequency by the factor and keeping the fastest ("NTK-aware").
    yarn, llama3: see `_yarn` and `_llama3`.

    Args:
        head_dim: Head width R.
        base: Base of the frequencies.
        scaling: Scaling of the frequencies, or None.
        device: Device to compute on. A copy from the host would block until the GPU is idle.

    Returns:
        theta_k of the R/2 planes in radians per token, float64 [R/2]; and the modulus, which is 1 except for YaRN.
    """
    channel = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)  # 2k
    if scaling is not None and scaling.kind == "theta":
        base = scaled_base(head_dim, base, scaling.factor)
    thetas = base ** (-channel / head_dim)
    if scaling is None or scaling.kind == "theta":
        return thetas, 1.0
    if scaling.kind == "linear":
        return thetas / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(thetas, scaling)
    return _yarn(thetas, head_dim, base, scaling)


def scaled_base(head_dim: int, base: float, factor: float) -> float:
    """Return the base of theta scaling."""
    return base * factor ** (head_dim / (head_dim - 2))


def _llama3(thetas: Tensor, scaling: Any) -> tuple[Tensor, float]:
    """Scale frequencies as in Llama 3.1 (its authors' code, and transformers).

    Planes turning at least high_freq_factor times within the original length keep their frequency, those turning at most
    low_freq_factor times are interpolated, and both are blended in between, linearly in the number of turns.
    """
    length = scaling.original_length
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    num_turns = length * thetas / (2 * math.pi)
    # 1 keeps the frequency, 0 interpolates.
    blend = ((num_turns - low) / (high - low)).clamp(0, 1)
    return thetas / scaling.factor * (1 - blend) + thetas * blend, 1.0


def _yarn(thetas: Tensor, head_dim: int, base: float, scaling: Any) -> tuple[Tensor, float]:
    """Scale frequencies as in YaRN (arXiv 2309.00071, section 3; its authors' code, and transformers).

    Planes turning more than beta_fast times within the original length keep their frequency, those turning less than beta_slow
    times are interpolated, and both are blended in between, linearly in the plane's index. (The TAPE authors' `adayarn` blends
    in the number of turns.)

    attention_factor, by default 0.1 ln(factor) + 1, is the modulus of the rotations of queries and of keys, so scores are
    multiplied by its square.
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
    # The lower bound of 1e-3 avoids dividing by zero.
    num_blended = (last - first) or 1e-3
    plane = torch.arange(head_dim // 2, dtype=torch.float64, device=thetas.device)
    interpolated = ((plane - first) / num_blended).clamp(0, 1)
    scaled_thetas = thetas / scaling.factor * interpolated + thetas * (1 - interpolated)
    modulus = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1
    return scaled_thetas, modulus


class Rope(Encoding):
    """Rotary position embedding: a constant position tensor, the same for all heads."""

    equation = "score(i, j) = q_i^T R(i - j) k_j / sqrt R"
    has_position_tensor = True

    def positions(self, random_offset: bool) -> Positions:
        """Return the sampler of position ids. Offsets only change rounding, but `tape` then sees the same ids."""
        max_offset = 2 * self.config.max_positions if random_offset else 0
        return Positions(max_offset=max_offset)

    def state(self, position_ids: Tensor) -> Tensor:
        config = self.config
        return rotary_state(
            position_ids,
            config.head_dim,
            config.rotary_base,
            config.scaling,
            rotated_size(config),
        )
