"""Builds the configuration of a run that starts from an imported model."""

import logging
from pathlib import Path
from typing import Any

from megatape.hf.architecture import Architecture
from megatape.imports import given
from megatape.registry import ENCODINGS

LOG = logging.getLogger(__name__)

# Default number of tokens per sample, if the model supports as many.
DEFAULT_LENGTH = 4096


def starting_config(architecture: Architecture, out: Path, encoding: str, length: int | None, dtype: str) -> dict[str, Any]:
    """Return the configuration of a run that starts from a pretrained model, except for its data and steps.

    The recipe is that of the paper's context extension.

    Args:
        architecture: Architecture of the pretrained model.
        out: Import folder.
        encoding: Position encoding to train with.
        length: Tokens per sample, None for the default.
        dtype: Precision of the pretrained weights.
    """
    max_positions = architecture.model.max_positions
    length = length or min(max_positions, DEFAULT_LENGTH)
    model, family = _model_section(architecture, encoding)
    model["max_positions"] = max(max_positions, length)

    run: dict[str, Any] = {"directory": str(out / "run")}
    if given():
        run["imports"] = list(given())
    export = {"dtype": dtype}
    if family is not None:
        export["family"] = family
    precision = "bfloat16"
    if dtype == "float32":
        precision = "float32"
    return {
        "run": run,
        "model": model,
        "data": {"sequence_length": length},
        "training": {
            "init_from": str(out.absolute()),
            "global_batch_size": 64,
            "micro_batch_size": 1,
            "precision": precision,
            "activation_checkpointing": "full",
        },
        "optimizer": {"learning_rate": 2e-5, "weight_decay": 0.0},
        "schedule": {"kind": "constant", "warmup_fraction": 0.05},
        "export": export,
    }


def _model_section(architecture: Architecture, encoding: str) -> tuple[dict[str, Any], str | None]:
    """Return the model section with a given encoding, and the family to export to if the encoding is the model's.

    Settings that the encoding does not support are dropped, and logged.
    """
    pretrained = architecture.model
    model = pretrained.model_dump(exclude_none=True) | {"encoding": encoding}
    # The new encoding determines this size.
    del model["position_size"]
    family = None
    if encoding == pretrained.encoding:
        family = architecture.config.model_type
    elif "layers" in model:
        model["layers"] = str(pretrained.pattern.renamed(pretrained.encoding, encoding))
    if not ENCODINGS[encoding].scalable and model.pop("scaling", None):
        LOG.info("the scaling of rotary frequencies is not kept: %s has none of these", encoding)
    return model, family
