"""Families: architectures of transformers that hold our models, a file each. megatape/registry.py lists them."""

from megatape.config import ModelConfig, families_with
from megatape.errors import UserError
from megatape.hf.families.family import Family
from megatape.registry import FAMILIES


def family_of(model: ModelConfig, name: str | None = None) -> Family:
    """Return the family as which a model is exported.

    Args:
        model: Model section.
        name: Name of the family to export to, None for the first one that holds such models.

    Raises:
        UserError: No family holds such a model.
    """
    possible = families_with(model)
    if not possible:
        raise UserError(f"no architecture of exported models has a model with {model.parts}: megatape/registry.py lists them")
    return FAMILIES[name or possible[0]].load()()


def family_named(model_type: object) -> Family:
    """Return the family with this `model_type` in config.json.

    Raises:
        UserError: It is not registered.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UserError(f"model_type is {model_type!r}; models of {', '.join(FAMILIES)} are run without code of the folder")
    return FAMILIES[model_type].load()()


def export_obstacle(model: ModelConfig, name: str | None = None) -> str | None:
    """Return the reason why a model cannot be exported, or None if it can. Arguments as in `family_of`."""
    try:
        family_of(model, name).code(model)
    except (UserError, OSError) as error:
        return str(error)
    return None
