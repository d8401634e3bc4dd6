"""Architectures of transformers that hold our models, a file each; megatape/registry.py has their names."""

from megatape.config import ModelConfig
from megatape.hf.families.family import Family
from megatape.registry import FAMILIES


def family_of(model: ModelConfig) -> Family:
    """The family that a model with this configuration is exported as. Raises ValueError if there is none."""
    for entry in FAMILIES.values():
        family: Family = entry.load()()
        if family.represents(model):
            return family
    raise ValueError(f"model.encoding {model.encoding} has no code for exported models: name it in megatape/registry.py")


def family_named(model_type: object) -> Family:
    """The family whose models have this `model_type` in their config.json. Raises ValueError if it is not registered."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type is {model_type!r}; models of {' and '.join(FAMILIES)} are run without code of the folder")
    family: Family = FAMILIES[model_type].load()()
    return family
