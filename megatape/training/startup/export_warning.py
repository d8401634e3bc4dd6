"""Warns before training if a model with the user's own modules cannot be exported."""

from megatape import imports
from megatape.config import ModelConfig
from megatape.registry import EXPORT_CHECK


def export_warning(model: ModelConfig, family: str | None) -> str:
    """Return the reason why a model with the user's own modules cannot be exported or evaluated, or "" if it can.

    The model can still be trained: only exports contain the code of the modules, and you can change it until then.

    Args:
        model: Configuration of the model.
        family: Name of its model family (export.family), None to choose one.
    """
    if not imports.given():
        return ""
    # Imports transformers, which training does not need otherwise.
    obstacle = EXPORT_CHECK.load()(model, family)
    if obstacle is None:
        return ""
    return f"this model can be trained, but not exported or evaluated: {obstacle}"
