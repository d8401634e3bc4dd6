"""Table of position encodings. Exported folders have a table of their own in place of this file."""

from megatape.registry import ENCODINGS

__all__ = ["ENCODINGS"]
