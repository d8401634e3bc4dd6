"""Families: architectures of transformers that hold our models, a file each. megatape/registry.py lists them."""

from megatape.config import Config, families_with
from megatape.errors import UserError
from megatape.hf.families.family import Family
from megatape.registry import FAMILIES


def family_of(config: Config) -> Family:
    """Return the family as which a model with this configuration is exported.

    Raises:
        UserError: No family holds such a model.
    """
    possible = families_with(config.model)
    if not possible:
        raise UserError(
            f"no architecture of exported models has a model with {config.model.parts}: megatape/registry.py lists them"
        )
    name = config.export.family or possible[0]
    return FAMILIES[name].load()()


def family_named(model_type: object) -> Family:
    """Return the family with this `model_type` in config.json.

    Raises:
        UserError: It is not registered.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UserError(f"model_type is {model_type!r}; models of {', '.join(FAMILIES)} are run without code of the folder")
    return FAMILIES[model_type].load()()


def export_obstacle(config: Config) -> str | None:
    """Return the reason why the model of this configuration cannot be exported, or None if it can."""
    try:
        family_of(config).code(config.model)
    except (UserError, OSError) as error:
        return str(error)
    return None
