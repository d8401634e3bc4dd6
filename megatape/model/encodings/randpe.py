"""RandPE: rotary embedding of sorted random positions (Ruoss et al., arXiv 2305.16843, with RoPE as the TAPE authors use it).

The N tokens of a sample get N different positions of 0 .. 2 max_positions - 1 in rising order, so that large positions are seen at
any length. The authors draw anew for each batch, in evaluation too; here a training sample's draw is a function of (seed, place in
the run) and evaluation uses one draw for each (seed, length).
"""

from megatape.data.positions import Positions
from megatape.model.encodings.rope import Rope


class RandPE(Rope):
    """See above."""

    def positions(self, random_offset: bool) -> Positions:
        return Positions(drawn_from=2 * self.config.max_positions)
