"""Table of position encodings. Exported folders contain another table instead of this file."""

from megatape.registry import ENCODINGS

__all__ = ["ENCODINGS"]
