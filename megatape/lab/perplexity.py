"""Perplexity, shown by reports and measured by tasks."""

import math

# Maximum exponent. exp overflows above 709.
MAX_NATS = 700


def perplexity(nats: float) -> float:
    """Return the perplexity for a mean loss per token in nats: exp(nats), at most exp(MAX_NATS)."""
    return math.exp(min(MAX_NATS, nats))
