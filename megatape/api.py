"""Functions for use from Python: load a trained model, or make a new one. Importing them needs no torch."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megatape.config import ModelConfig
    from megatape.hf.language_model import LanguageModel
    from megatape.model.transformer import Transformer


def load(
    folder: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
) -> "LanguageModel":
    """Load a trained model, on the GPU if there is one.

    >>> model = megatape.load("runs/first_run_python/checkpoints/step-00000200")
    >>> model.generate("def main(")

    Args:
        folder: Checkpoint, export, import, or folder of a pretrained transformers model. Hashes are verified where recorded.
        base: New folder of a checkpoint's frozen base model, if it has moved.
        adapter: Exported adapter to merge into the model.
        trust_remote_code: Whether to run Python files in the folder, for models of other projects.

    Raises:
        FileNotFoundError, UserError: A file is missing, corrupted or not supported.
    """
    from megatape.hf.language_model import load_language_model

    return load_language_model(
        Path(folder), base=_optional_path(base), adapter=_optional_path(adapter), trust_remote_code=trust_remote_code
    )


def new_model(
    config: "str | os.PathLike[str] | ModelConfig | dict[str, Any]",
    seed: int = 1234,
    **changes: Any,
) -> "Transformer":
    """Return a new model with the initial weights that training would give it.

    >>> model = megatape.new_model("configs/tape_tiny.json", encoding="rope")
    >>> loss = model(tokens, targets=targets) / targets.numel()

    Args:
        config: Configuration file, model section, or dictionary of the section's values.
        seed: Seed of the weights, as training.seed. Equal parameters of two encodings get equal weights.
        changes: Values of the model section to replace.

    Returns:
        The model in float32 on the CPU, for a single device.

    Raises:
        ConfigError: The configuration is invalid.
    """
    from megatape.config import ModelConfig, load_config, parse_model
    from megatape.model.build import build_model
    from megatape.model.init import initialize

    if isinstance(config, ModelConfig):
        values = config.model_dump(exclude_unset=True)
    elif isinstance(config, dict):
        values = config
    else:
        values = load_config(Path(config)).model.model_dump(exclude_unset=True)
    model = build_model(parse_model(values | changes, "model section"))
    initialize(model, model.config.init_std, seed)
    return model


def _optional_path(path: str | os.PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    return Path(path)
