"""The interface of an attention backend. A new one is a file and a line in BACKENDS (megatape/registry.py).

At the end is attention over [v | e] by kernels for values of a limited width: wide values take several calls.

Shapes as in model/transformer.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState
from megatape.moved_modules import old_names

# The bias that an encoding adds to the scores: none, one by the distance or one by the pair of tokens.
BiasKind = Literal["none", "distance", "pair"]

# [B, N], index of the first token of each token's document in a packed sample. None if every sample is one document.
DocumentStarts = Tensor | None


@dataclass(frozen=True)
class AttentionRequirements:
    """What a backend must support.

    moves: attention moves the state with the same weights as the values. head_dim: R. masked: documents packed into one sample
    do not see each other. ring: keys and values are on several ranks.
    """

    device_type: str
    moves: bool
    bias: BiasKind
    head_dim: int
    dtype: torch.dtype
    masked: bool
    ring: bool = False


class Backend(ABC):
    """One way to run attention."""

    @abstractmethod
    def unsupported_reason(self, need: AttentionRequirements) -> str | None:
        """Why this backend does not support `need`; None if it does.

        This default is what all backends but `blocked` lack, and so the last reason of each. What fails only on the device at
        hand is found out by model/smoke_test.py.
        """
        return "does not pass keys between the ranks of parallel.cp" if need.ring else None

    def is_preferred_for(self, need: AttentionRequirements) -> bool:
        """Whether `auto` takes it before those that precede it in the registry: it was measured faster."""
        return False

    def kernel_name(self, need: AttentionRequirements, device: torch.device) -> str:
        """Which of several kernels runs for a layer with this need; "" for a backend with one."""
        return ""

    @abstractmethod
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: PositionState | None,
        bias: ScoreBias | None,
        document_starts: DocumentStarts,
        move: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Causal attention; arguments and results as in operation.attend, of a call that it does not refuse."""


# Width of values up to which PyTorch's kernels have a backward pass: beyond it cuDNN takes the forward pass and has none, and
# the tiles of flex_attention need more shared memory than a GPU has.
WIDEST = 128


def attend_v_and_e(v: Tensor, e: Tensor | None, attend: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor | None]:
    """A v and, unless e is None, A e by as few calls of `attend`, which computes A values, as its kernels allow.

    One call over [v | e] if that is no wider than WIDEST; else one over v, and one over each part of e that is no wider than
    WIDEST or v. Every call computes the scores again.
    """
    if e is None:
        return attend(v), None
    width = v.shape[-1]
    if width + e.shape[-1] <= WIDEST:
        both = attend(torch.cat([v, e], dim=-1))
        return both[..., :width], both[..., width:]
    parts = [attend(part) for part in e.split(max(width, WIDEST), dim=-1)]
    return attend(v), parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
