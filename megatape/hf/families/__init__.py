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
