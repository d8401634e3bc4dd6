"""Evaluations of perplexity by the command."""

from collections.abc import Callable

Evaluate = Callable[..., tuple[int, str, str]]
LENGTHS = ("--lengths", "32,64", "--max-tokens", "1500", "--mode", "sliding", "--stride", "4")
