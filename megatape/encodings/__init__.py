"""Position encodings, one per file. Their names are in megatape/registry.py, their interface in encoding.py.

Besides them, convolution.py has the short convolution that several encodings use, log_scale.py the scale log n of scores, and
kernels/ the Triton kernels of TAPE's update.
"""

from megatape.config import ModelConfig
from megatape.encodings.encoding import Encoding, encodings_by_layer
from megatape.registry import ENCODINGS


def make_encoding(name: str, config: ModelConfig) -> Encoding:
    """Make the encoding with this name for a configured model."""
    encoding_class = ENCODINGS[name].load()
    return encoding_class(config)


def encoding_of(config: ModelConfig) -> Encoding:
    """Return the encoding of a configured model."""
    return make_encoding(config.encoding, config)


def layer_encodings(config: ModelConfig) -> list[Encoding]:
    """Return the encoding of each layer. Layers with the model's encoding share one object, as do all others by name."""
    return encodings_by_layer(encoding_of(config), lambda name: make_encoding(name, config))
