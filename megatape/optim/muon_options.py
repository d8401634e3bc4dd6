"""Options of Muon, and the state and cost of updating a matrix.

They are separate from muon.py, because configurations are checked without importing torch.
"""

from typing import Literal

from pydantic import Field

from megatape.config.section import Confirmed, Fixed, JsonList
from megatape.optim.adamw import AdamWOptions

# Number of Newton-Schulz iterations.
ITERATIONS = 5


class MuonOptions(AdamWOptions):
    """Muon for whole matrices, AdamW for the other weights.

    Attributes:
        momentum: Muon's decay of the momentum, which is Nesterov's
        orthogonalized: roles of weights that Muon updates: matrix (those of attention, MLP and
            adapters), position (those of the position encoding), embedding (embedding and output
            head); AdamW updates the rest
    """

    momentum: Confirmed[float] = Field(0.95, ge=0, lt=1)
    orthogonalized: Fixed[JsonList[Literal["matrix", "position", "embedding"]]] = Field(("matrix",), min_length=1)

    def is_whole(self, role: str) -> bool:
        """Whether Muon updates weights of this role as whole matrices."""
        return role in self.orthogonalized


def matrix_state(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of a matrix's momentum, under torch's name."""
    return {"momentum_buffer": shape}


def matrix_flops(shape: tuple[int, ...]) -> int:
    """Return the FLOPs of one orthogonalization.

    With m <= n, each iteration multiplies [m, n] by [n, m], [m, m] by [m, m], and [m, m] by [m, n].
    """
    m = min(shape)
    n = max(shape)
    return ITERATIONS * (4 * m * m * n + 2 * m**3)
