"""Rotary angles as the state of an encoding, and queries and keys rotated by it. Shapes as in encoding.py."""

import math

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from .encoding import Encoding


def frequencies(config: PreTrainedConfig) -> tuple[Tensor, float]:
    """Radians per token of the R/2 planes, float64, and the modulus of the rotations, as config.rope_parameters say."""
    rope, size = config.rope_parameters, config.head_dim
    base, kind = rope["rope_theta"], rope["rope_type"]
    thetas = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    if kind == "default":
        return thetas, 1.0
    if kind == "linear":
        return thetas / rope["factor"], 1.0
    length = rope["original_max_position_embeddings"]
    if kind == "llama3":  # planes that turn often within the original length stay, those that turn seldom are interpolated
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = ((length * thetas / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return thetas / rope["factor"] * (1 - kept) + thetas * kept, 1.0
    # YaRN: the same, blended in the plane's index instead of the number of turns.
    betas = rope.get("beta_fast") or 32, rope.get("beta_slow") or 1
    fast, slow = (size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in betas)
    if rope.get("truncate", True):
        fast, slow = math.floor(fast), math.ceil(slow)
    first, last = max(fast, 0), min(slow, size - 1)
    ramp = ((torch.arange(size // 2, dtype=torch.float64) - first) / ((last - first) or 1e-3)).clamp(0, 1)
    modulus = rope.get("attention_factor") or 0.1 * math.log(rope["factor"]) + 1
    return thetas / rope["factor"] * ramp + thetas * (1 - ramp), modulus


def rotary_parts(config: PreTrainedConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles at positions [B, N], float64 [B, N, R/2] each.

    In float32 the angles are wrong by 3e-4 at position 131072.
    """
    thetas, size = frequencies(config)
    angles = positions.to(torch.float64)[..., None] * thetas.to(positions.device)
    return angles.cos() * size, angles.sin() * size


def all_channels(config: PreTrainedConfig, *parts: Tensor) -> Tensor:
    """Parts [B, N, ...] side by side as a float32 state [B, N, L, W] that is the same for all channels."""
    state = torch.cat(parts, dim=-1).to(torch.float32)
    return state[:, :, None].expand(-1, -1, config.num_key_value_heads, -1)


def rotate(x: Tensor, e: Tensor) -> Tensor:
    """Multiply the planes of heads x [B, N, H, R] by those of e [B, N, L, W], (x1 + i x2)(c + i s).

    With W = 2R each row of the product has its own c and s. Heads l H/L .. (l + 1) H/L - 1 share channel l. Returns
    [B, N, H, R] in the dtype of x.
    """
    x1, x2 = x.unflatten(2, (e.shape[2], -1)).chunk(2, dim=-1)
    e = e[:, :, :, None]
    if e.shape[-1] == 2 * x.shape[-1]:
        c1, c2, s1, s2 = e.chunk(4, dim=-1)
    else:
        (c1, s1), (c2, s2) = e.chunk(2, dim=-1), e.chunk(2, dim=-1)
    rotated = torch.addcmul(x1 * c1, x2, s1, value=-1), torch.addcmul(x2 * c2, x1, s2)
    return torch.cat(rotated, dim=-1).flatten(2, 3).to(x.dtype)


class RotaryEncoding(Encoding):
    """The state starts as rotary angles, R/2 cosines and R/2 sines, which rotate queries and keys."""

    def state(self, positions: Tensor) -> Tensor:
        return all_channels(self.config, *rotary_parts(self.config, positions))

    def rotate_qk(self, q: Tensor, k: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        assert state is not None
        return rotate(q, state), rotate(k, state)
