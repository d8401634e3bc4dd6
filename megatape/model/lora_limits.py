"""Settings that LoRA adapters (model.lora) do not support."""

from megatape.config import Config
from megatape.config.limits import Incompatibility, Limit, ValueOf

LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting="model.lora",
        case='training.trainable ["all"]',
        when=lambda config: config.model.lora is not None and "all" in config.training.trainable,
        because="which trains every weight beside the adapters",
        remedy='give what to train, such as ["adapters"] or ["adapters", "norms", "embeddings"], or remove model.lora',
    ),
    Incompatibility[Config](
        setting=ValueOf("training.chunk_tokens"),
        case=ValueOf("model.lora.dropout"),
        when=lambda config: (
            config.training.chunk_tokens is not None and config.model.lora is not None and config.model.lora.dropout > 0
        ),
        because="whose zeros depend on the place of a token",
        remedy="set dropout to 0, or remove chunk_tokens",
    ),
)
