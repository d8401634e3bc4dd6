"""Interface of attention backends. A new one is a file in attention/backends/ and a line in BACKENDS (megatape/registry.py).

Shapes as in model/transformer.py.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState

# Bias that an encoding adds to the scores: none, by distance between the tokens, a difference c_i - c_j of numbers of the query
# and the key, or any number of the pair.
BiasKind = Literal["none", "distance", "decay", "pair"]

# Index of the first token in each token's document, [B, N], or None without packed documents.
DocumentStarts = Tensor | None


@dataclass(frozen=True)
class AttentionRequirements:
    """Requirements of a layer, for selecting its backend.

    Attributes:
        device_type: Device type, such as "cuda".
        averages_state: Whether attention averages the state with the same weights as the values.
        bias: Kind of bias on the scores.
        head_dim: Head size R.
        dtype: Data type of queries, keys and values.
        masked: Whether samples are packed documents that do not see each other.
        ring: Whether keys and values pass around several ranks.
        windowed: Whether tokens only attend to those within a window.
        grouped: Whether several query heads share a key/value head.
        deterministic: Whether the same inputs must give the same gradients, bit for bit.
        compiled: Whether torch.compile traces the layer.
    """

    device_type: str
    averages_state: bool
    bias: BiasKind
    head_dim: int
    dtype: torch.dtype
    masked: bool
    ring: bool = False
    windowed: bool = False
    grouped: bool = False
    deterministic: bool = False
    compiled: bool = False


class Backend(ABC):
    """Implementation of attention.

    Attributes:
        has_windows: Whether `attend` takes a window.
        smoke_test_tokens: Maximum number of tokens in the sample of its smoke test: two blocks of queries, or as many as reach
            every kernel that a run may need.
    """

    has_windows: ClassVar[bool] = False
    smoke_test_tokens: ClassVar[int] = 256

    @abstractmethod
    def unsupported_reason(self, requirements: AttentionRequirements) -> str | None:
        """Return the reason why this backend does not support a layer, or None if it does.

        Subclasses check their own limits first, then return this default. It refuses windows unless `has_windows`, and the
        ring, which only `blocked` supports.
        Failures that only occur on the actual device are left to the smoke test (model/smoke_test.py).
        """
        if requirements.ring:
            return "does not pass keys between the ranks of parallel.cp"
        if requirements.windowed and not self.has_windows:
            return "computes no attention within a window"
        return None

    def is_preferred_for(self, requirements: AttentionRequirements) -> bool:
        """Whether `auto` prefers this backend to the ones before it in the registry, because it was faster in measurements."""
        return False

    def missed_reason(self, requirements: AttentionRequirements) -> str | None:
        """Return the reason why `auto` cannot use this backend although its package was installed for it, or None.

        A run prints it. It is None if the backend works, or if nobody expects it to.
        """
        return None

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
        averages_state: bool,
        window: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute causal attention. Only called if `unsupported_reason` is None.

        Arguments and results are those of attention/attend.py, with queries, keys and values of equal width. A backend without
        windows need not take `window`. Compiled blocks trace this function, so what torch.compile cannot trace in it must be an
        operator (utils/pytorch/operators.py).
        """
