"""Which parameters belong to which part of a model."""

from megatape.model.encodings.encoding import EncodingModule
from megatape.model.transformer import Transformer


def position_parameters(model: Transformer) -> set[str]:
    """Names of the parameters that the model has for its encoding's sake: those of the modules that the encoding makes."""
    return {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, EncodingModule)
        for name, _ in module.named_parameters()
    }
