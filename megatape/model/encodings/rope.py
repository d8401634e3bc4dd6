"""RoPE (Su et al., arXiv 2104.09864): queries and keys are rotated by their positions, in halves as in Llama.

model.scaling changes the frequencies (see `rotary.frequencies`).
"""

from torch import Tensor

from megatape.data.training.positions import Positions
from megatape.model.encodings import rotary
from megatape.model.encodings.encoding import Encoding


class Rope(Encoding):
    """A constant position tensor, the same for all heads."""

    has_position_tensor = True

    def positions(self, random_offset: bool) -> Positions:
        """Offsets change only rounding; RoPE has them so that `tape` and `rope` see the same positions."""
        return Positions(max_offset=2 * self.config.max_positions if random_offset else 0)

    def state(self, positions: Tensor) -> Tensor:
        config = self.config
        return rotary.rotary_state(positions, config.head_dim, config.rotary_base, config.scaling)
