"""What a backend of attention says about itself. A new one is a file and a line in BACKENDS (megatape/registry.py).

Shapes as in model/block.py.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias

# What an encoding asks of attention: nothing, that its weights move the state too, or a bias on the scores of pairs of tokens (which
# may be a function of their distance alone).
Attends = Literal["plain", "moving", "distance bias", "pair bias"]


@dataclass(frozen=True)
class Need:
    """What is asked of a backend. masked: documents of a sample do not see each other."""

    device_type: str
    attends: Attends
    head_dim: int
    dtype: torch.dtype
    masked: bool


@dataclass(frozen=True)
class Sizes:
    """Of one layer on one rank, for a micro-batch: tokens B N, heads H, channels L, and the widths R and W (0 if nothing moves)."""

    tokens: int
    heads: int
    channels: int
    head_dim: int
    state_width: int
    element_bytes: int


class Backend(ABC):
    """One way to run attention."""

    @abstractmethod
    def refusal(self, need: Need) -> str | None:
        """Why it cannot do this; None if it can."""

    def copied_bytes(self, sizes: Sizes) -> int:
        """Bytes that it keeps on a GPU for the backward pass of one layer, beyond what attention keeps on a CPU."""
        return 0

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None, document_starts: Tensor | None) -> Tensor:
        """Causal attention of q [B, N, H, R] and k, v [B, N, L, R] with a bias on the scores, or without.

        document_starts: [B, N], first token that each token may see, or None. Returns A v [B, N, H, R] in the dtype of v."""

    def attend_and_move(
        self, q: Tensor, k: Tensor, v: Tensor, e: Tensor, document_starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The same with q and k rotated by e [B, N, L, W], over v and e, for backends that do not refuse "moving".

        Returns A v [B, N, H, R] and A e [B, N, H, W] in the dtype of v."""
        raise NotImplementedError
