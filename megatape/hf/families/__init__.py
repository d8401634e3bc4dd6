"""Architectures of transformers that hold our models, a file each; megatape/registry.py has their names."""

from megatape.config import Config, families_with
from megatape.errors import UserError
from megatape.hf.families.family import Family
from megatape.registry import FAMILIES


def family_of(config: Config) -> Family:
    """The family that a model with this configuration is exported as. Raises UserError if there is none."""
    model = config.model
    possible = families_with(config.model)
    if not possible:
        raise UserError(f"no architecture of exported models has a model with {model.parts}: megatape/registry.py lists them")
    return FAMILIES[config.export.family or possible[0]].load()()


def family_named(model_type: object) -> Family:
    """The family whose models have this `model_type` in their config.json. Raises UserError if it is not registered."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UserError(f"model_type is {model_type!r}; models of {', '.join(FAMILIES)} are run without code of the folder")
    return FAMILIES[model_type].load()()
