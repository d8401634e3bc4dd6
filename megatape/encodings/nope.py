"""NoPE (Kazemnejad et al., arXiv 2305.19466): no position encoding; the causal mask alone tells tokens apart."""

from megatape.encodings.encoding import Encoding


class NoPE(Encoding):
    """No position encoding: the base class as it is.

    score(i, j) = q_i . k_j / sqrt R
    """
