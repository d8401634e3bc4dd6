"""MegaTAPE: pretraining, extending and studying language models with TAPE position encodings."""

import sys

from megatape.moved_modules import OldNames

sys.meta_path.append(OldNames)
