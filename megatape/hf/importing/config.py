"""Configuration of a run that starts from an imported model."""

import logging
from pathlib import Path
from typing import Any

from megatape.errors import UserError
from megatape.hf.architecture import Architecture
from megatape.imports import given
from megatape.registry import ENCODINGS

LOG = logging.getLogger(__name__)

# Length of samples in tokens, unless the model or the user says otherwise.
LENGTH = 4096


def starting_config(
    found: Architecture, source: Path, out: Path, encoding: str, length: int | None, dtype: str
) -> dict[str, Any]:
    """Return the configuration of a run that starts from a model, except for its data and steps.

    The recipe is the context extension of the paper.

    Args:
        found: The model.
        source: Folder of the model.
        out: Folder of the import.
        encoding: Position encoding to train with.
        length: Length of samples in tokens, None for the usual one.
        dtype: Name of the precision of the weights.

    Raises:
        UserError: The model attends to fewer tokens than a sample has.
    """
    longest = _longest(found)
    length = _check_length(found, source, length)
    model, family = _model_section(found, encoding)
    if "sliding_window" in model:
        longest = found.model.max_positions
    model["max_positions"] = max(longest, length)

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


def _longest(found: Architecture) -> int:
    """Return the number of tokens to which a token of the model can attend."""
    max_positions = found.model.max_positions
    if found.window is None:
        return max_positions
    return min(max_positions, found.window)


def _check_length(found: Architecture, source: Path, length: int | None) -> int:
    """Return the length of samples. Raises UserError if the model's attention window is shorter."""
    usual = length or min(found.model.max_positions, LENGTH)
    length = length or min(_longest(found), LENGTH)
    if found.window is not None and found.window < length:
        raise UserError(
            f"{source / 'config.json'}: sliding_window is {found.window}, shorter than the sequence length {length}: attention "
            f"to the last tokens only is not supported, give `length` {found.window} or less"
        )
    if length < usual:
        LOG.info("attention window of %d tokens: samples have %d, not %d", found.window, length, usual)
    return length


def _model_section(found: Architecture, encoding: str) -> tuple[dict[str, Any], str | None]:
    """Return the model section with this encoding, and the family to export to if it is the model's own.

    Logs the settings that the encoding does not have.
    """
    model = found.model.model_dump(exclude_none=True) | {"encoding": encoding}
    del model["position_size"]  # It follows from the encoding.
    family = None
    if encoding == found.model.encoding:
        family = found.config.model_type
    elif model.pop("sliding_window", None):
        LOG.info("the attention window is not kept: with %s a token attends to all before it", encoding)
    if not ENCODINGS[encoding].scalable and model.pop("scaling", None):
        LOG.info("the scaling of rotary frequencies is not kept: %s has none of these", encoding)
    return model, family
