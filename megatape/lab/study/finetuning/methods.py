"""Methods extending a pretrained model's context, and their settings of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from megatape.config import LoraConfig, SettingValues
from megatape.errors import UserError, flag

# Name of the model without training, listed with the methods.
BASE = "base"


@dataclass(frozen=True)
class Method:
    """A way to train the base, besides the settings shared by all methods (`extension`).

    Attributes:
        trainable: Weight groups to train, values of training.trainable.
        lora: Low-rank adapters, or None.
        is_tape: Whether to replace the base's rotary positions with TAPE.
        rotary_base: Rotary frequency base. None to keep the model's.
        num_shifted_groups: Token groups per sample in LongLoRA's shifted sparse attention. None for full attention.
    """

    trainable: tuple[str, ...]
    lora: LoraConfig | None = None
    is_tape: bool = False
    rotary_base: float | None = None
    num_shifted_groups: int | None = None

    def settings(self) -> SettingValues:
        """Return the method's settings of a run."""
        settings: SettingValues = {"training.trainable": list(self.trainable)}
        if self.lora is not None:
            settings["model.lora"] = self.lora.model_dump(mode="json")
        if self.is_tape:
            settings["model.encoding"] = "tape"
            # No architecture of transformers has TAPE, so the export has our own family and not the base's.
            settings["export.family"] = None
        if self.rotary_base is not None:
            settings["model.rotary_base"] = self.rotary_base
        if self.num_shifted_groups is not None:
            settings["training.num_shifted_groups"] = self.num_shifted_groups
        return settings


LORA = Method(
    trainable=("adapters", "embeddings", "norms"),
    lora=LoraConfig(rank=8, alpha=16.0, targets=("query", "key", "value", "output")),
)
TAPE = Method(trainable=("position", "embeddings", "norms"), is_tape=True)
# tape_lora and full are not the paper's.
METHODS: Mapping[str, Method] = {
    "lora": LORA,
    "longlora": replace(LORA, num_shifted_groups=4),
    "theta": replace(LORA, rotary_base=1e6),
    "tape": TAPE,
    "tape_lora": replace(TAPE, lora=LORA.lora, trainable=("position", "adapters", "embeddings", "norms")),
    "full": Method(trainable=("all",)),
}


def extension(original: int, length: int) -> SettingValues:
    """Return the settings shared by all methods: longer samples, with positions scaled to stay within the original length.

    Args:
        original: Number of tokens that the base is made for.
        length: Tokens per sample.

    Raises:
        UserError: `length` is not longer.
    """
    if length <= original:
        raise UserError(
            f"{flag('length')} {length} is no longer than the {original} tokens that the base is made for: give more"
        )
    return {
        "data.sequence_length": length,
        "model.encoding": "rope",
        "model.max_positions": length,
        "model.scaling": {"kind": "linear", "factor": length / original},
    }
