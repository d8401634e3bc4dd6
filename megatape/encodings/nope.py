"""NoPE (Kazemnejad et al., arXiv 2305.19466): no position encoding. Only the causal mask tells tokens apart.

score(i, j) = q_i . k_j / sqrt R
"""

from megatape.encodings.encoding import Encoding


class NoPE(Encoding):
    """No position encoding, which is what the base class does."""

    equation = "score(i, j) = q_i . k_j / sqrt R"
