"""Interface of attention backends. A new one is a file in attention/backends/ and a line in BACKENDS (megatape/registry.py).

Shapes as in model/transformer.py.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState
from megatape.moved_modules import old_names

# Bias that an encoding adds to the scores: none, by distance between the tokens, or by pair of tokens.
BiasKind = Literal["none", "distance", "pair"]

# Index of the first token in each token's document, [B, N], or None without packed documents.
DocumentStarts = Tensor | None


@dataclass(frozen=True)
class AttentionRequirements:
    """Requirements of a layer, for selecting its backend.

    Attributes:
        device_type: Device type, such as "cuda".
        moves_state: Whether attention averages the state with the same weights as the values.
        bias: Kind of bias on the scores.
        head_dim: Head size R.
        dtype: Data type of queries, keys and values.
        masked: Whether samples are packed documents that do not see each other.
        ring: Whether keys and values pass around several ranks.
    """

    device_type: str
    moves_state: bool
    bias: BiasKind
    head_dim: int
    dtype: torch.dtype
    masked: bool
    ring: bool = False


class Backend(ABC):
    """Implementation of attention."""

    @abstractmethod
    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        """Return the reason why this backend does not support a layer, or None if it does.

        Subclasses check their own limits first, then return this default, which refuses the ring: only `blocked` supports it.
        Failures that only occur on the actual device are left to the smoke test (model/smoke_test.py).
        """
        if requirements.ring:
            return "does not pass keys between the ranks of parallel.cp"
        return None

    def is_preferred_for(self, requirements: AttentionRequirements) -> bool:
        """Whether `auto` prefers this backend to the ones before it in the registry, because it was faster in measurements."""
        return False

    def kernel_name(self, requirements: AttentionRequirements, device: torch.device) -> str:
        """Return the name of the kernel running a layer, for backends with several kernels, or "" for others."""
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
        moves_state: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute causal attention. Only called if `unsupported_reason` is None.

        Arguments and results are those of attention/attend.py, with queries, keys and values of equal width.
        """


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
