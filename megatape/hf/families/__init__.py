"""Model families: architectures of transformers that our models can be exported to. megatape/registry.py lists them.

family.py                   base class: configuration, parameter names and code of an architecture
exported_model.py           the model to export, as families describe it in config.json
llama_like.py               base class of Llama and its relatives
llama.py, mistral.py, qwen2.py, qwen3.py
                            a relative each
tape.py                     the transformer in ../modeling/, which supports any position encoding

The functions below choose a family.
"""

from megatape.config import ModelConfig, families_with
from megatape.errors import UserError, flag
from megatape.hf.families.family import Family
from megatape.registry import FAMILIES


def family_of(model: ModelConfig, name: str | None = None) -> Family:
    """Return the family to export a model to.

    Args:
        model: Model section.
        name: Name of the family, None for the first one that supports the model.

    Raises:
        UserError: No family supports the model.
    """
    possible = families_with(model)
    if not possible:
        raise UserError(f"no architecture of exported models has a model with {model.parts}: megatape/registry.py lists them")
    return FAMILIES[name or possible[0]].load()()


def family_named(model_type: object) -> Family:
    """Return the family for the `model_type` in a config.json.

    Raises:
        UserError: There is no such family.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise UserError(
            f"model_type is {model_type!r}; only {', '.join(FAMILIES)} run without code from the model folder: give a model of "
            f"these, or let megatape generate and megatape evaluate run the folder's code by {flag('trust_remote_code')}"
        )
    return FAMILIES[model_type].load()()


def export_obstacle(model: ModelConfig, name: str | None = None) -> str | None:
    """Return the reason why a model cannot be exported, or None if it can. Same arguments as `family_of`."""
    try:
        family_of(model, name).code(model)
    except (UserError, OSError) as error:
        return str(error)
    return None
