"""Warns before training if a model with user modules cannot be exported."""

from megatape import imports
from megatape.config import ModelConfig
from megatape.registry import EXPORT_CHECK


def export_warning(model: ModelConfig, family: str | None) -> str | None:
    """Return a warning that a model with user modules cannot be exported or evaluated, or None if it can.

    The model can still be trained: only exports contain the modules' code, and you can change it until then.

    Args:
        model: Model configuration.
        family: Name of the model family (export.family), None to choose one.
    """
    if not imports.given():
        return None
    # Imports transformers, which training does not need otherwise.
    obstacle = EXPORT_CHECK.load()(model, family)
    if obstacle is None:
        return None
    return f"this model can be trained, but not exported or evaluated: {obstacle}"
