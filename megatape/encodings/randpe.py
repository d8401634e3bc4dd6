"""RandPE (Ruoss et al., arXiv 2305.16843): tokens get sorted random positions, so short samples also train large positions.

    score(i, j) = q_i^T R(p_i - p_j) k_j / sqrt R
    p_1 < p_2 < ... < p_N    drawn from 0 .. 2 max_positions - 1, without repetition

The scores are RoPE's, as in the TAPE authors' code. They draw new positions for each batch, in evaluation too. Here, the draw
of a training sample is a function of the seed and the number of samples before it, and evaluation has one draw for each seed
and length.
"""

from megatape.data.training.batches.positions import Positions
from megatape.encodings.rope import Rope


class RandPE(Rope):
    """RoPE at sorted random positions."""

    equation = """
        score(i, j) = q_i^T R(p_i - p_j) k_j / sqrt R
        p_1 < p_2 < ... drawn from 0 .. 2 max_positions - 1
    """

    def positions(self, random_offset: bool) -> Positions:
        return Positions(drawn_from=2 * self.config.max_positions)
