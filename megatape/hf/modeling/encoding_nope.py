"""NoPE (arXiv 2305.19466): no position encoding; the causal mask alone tells tokens apart."""

from .encoding import Encoding


class NoPE(Encoding):
    """See above."""
