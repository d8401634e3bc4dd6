"""MegaTAPE: pretraining, extending and studying language models with TAPE position encodings."""

from megatape import moved_modules

moved_modules.install()

from megatape.api import load, new_model

__all__ = ["load", "new_model"]
