"""RandPE (Ruoss et al., arXiv 2305.16843): rotary embedding of sorted random positions, with RoPE as in the TAPE authors' code.

    score(i, j) = q_i^T R(p_i - p_j) k_j / sqrt R

The N tokens of a sample get N distinct positions p from 0 .. 2 max_positions - 1 in ascending order, so training sees large
positions at any length. The authors draw new positions for each batch, in evaluation too. Here the draw of a training sample is
a function of the seed and of the number of samples before it, and evaluation uses one draw for each seed and length.
"""

from megatape.data.training.positions import Positions
from megatape.encodings.rope import Rope


class RandPE(Rope):
    """RoPE at sorted random positions.

    score(i, j) = q_i^T R(p_i - p_j) k_j / sqrt R
    p_1 < p_2 < ... drawn from 0 .. 2 max_positions - 1
    """

    def positions(self, random_offset: bool) -> Positions:
        return Positions(drawn_from=2 * self.config.max_positions)
