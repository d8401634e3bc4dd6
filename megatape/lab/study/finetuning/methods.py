"""Methods that extend a pretrained model's context, as settings of a run."""

from pydantic import JsonValue

from megatape.errors import UserError

# section.key -> value, as in --set.
Settings = dict[str, JsonValue]

# Name of the model without training, beside the methods.
BASE = "base"

LORA: Settings = {
    "model.lora": {"rank": 8, "alpha": 16.0, "targets": ["query", "key", "value", "output"]},
    "training.trainable": ["adapters", "embeddings", "norms"],
}
TAPE: Settings = {
    "model.encoding": "tape",
    "training.trainable": ["position", "embeddings", "norms"],
    # No architecture of transformers has TAPE, whatever the base's is.
    "export.family": None,
    # Our architecture for TAPE has no window.
    "model.sliding_window": None,
}
# Settings of each method, in addition to those of `extension`. tape_lora and full are not the paper's.
METHODS: dict[str, Settings] = {
    "lora": LORA,
    "longlora": LORA | {"training.num_shifted_groups": 4},
    "theta": LORA | {"model.rotary_base": 1e6},
    "tape": TAPE,
    "tape_lora": LORA | TAPE | {"training.trainable": ["position", "adapters", "embeddings", "norms"]},
    "full": {"training.trainable": ["all"]},
}


def extension(original: int, length: int) -> Settings:
    """Return the settings that all methods share.

    Samples are longer, and positions are divided so that they stay within the original length.

    Args:
        original: Number of tokens that the base is made for.
        length: Tokens per sample.

    Raises:
        UserError: `length` is not longer.
    """
    if length <= original:
        raise UserError(f"length {length} is no longer than the {original} tokens that the base is made for: give more")
    return {
        "data.sequence_length": length,
        "model.encoding": "rope",
        "model.max_positions": length,
        "model.scaling": {"kind": "linear", "factor": length / original},
    }
