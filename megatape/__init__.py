"""MegaTAPE: pretraining, extending and studying language models with TAPE position encodings."""

import sys

from megatape.api import load, new_model
from megatape.moved_modules import OldNames

__all__ = ["load", "new_model"]

sys.meta_path.append(OldNames)
