"""Settings excluded by the model's length limits, LoRA adapters and compiled blocks."""

from megatape.config import Config
from megatape.config.limits import Contradiction, Incompatibility, Limit

LENGTH_LIMITS: tuple[Limit[Config], ...] = (
    Contradiction(
        when=lambda config: config.data.sequence_length > config.model.max_positions,
        message="data.sequence_length {data.sequence_length} is longer than model.max_positions {model.max_positions}: "
        "shorten the samples, or raise max_positions",
    ),
    Contradiction(
        when=lambda config: (
            config.model.sliding_window is not None and config.data.sequence_length > config.model.sliding_window
        ),
        message="data.sequence_length {data.sequence_length} is longer than model.sliding_window {model.sliding_window}: "
        "shorten the samples",
    ),
)

LORA_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility(
        setting="model.lora",
        case='training.trainable ["all"]',
        when=lambda config: config.model.lora is not None and "all" in config.training.trainable,
        because="which trains every weight beside the adapters",
        remedy='give what to train, such as ["adapters"] or ["adapters", "norms", "embeddings"], or remove model.lora',
    ),
    Incompatibility(
        setting="training.chunk_tokens {training.chunk_tokens}",
        case="model.lora.dropout {model.lora.dropout}",
        when=lambda config: (
            config.training.chunk_tokens is not None and config.model.lora is not None and config.model.lora.dropout > 0
        ),
        because="whose zeros depend on the place of a token",
        remedy="set dropout to 0, or remove chunk_tokens",
    ),
)

COMPILE_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility(
        setting="training.compile",
        case="zero.stage 3",
        when=lambda config: config.training.compile and config.zero.stage == 3,
        because="which gathers weights in hooks of modules",
        remedy="choose stage 2, or set training.compile to false",
    ),
    Incompatibility(
        setting="training.compile",
        case="parallel.tp {parallel.tp}",
        when=lambda config: config.training.compile and config.parallel.tp > 1,
        because="whose exchanges lie within what is compiled",
        remedy="set parallel.tp to 1, or training.compile to false",
    ),
    Incompatibility(
        setting="training.compile",
        case="training.activation_checkpointing selective",
        when=lambda config: config.training.compile and config.training.activation_checkpointing == "selective",
        because="since the compiler chooses what compiled blocks keep",
        remedy="choose none or full, or set training.compile to false",
    ),
    Incompatibility(
        setting="training.compile",
        case="model.lora",
        when=lambda config: config.training.compile and config.model.lora is not None,
        because="whose dropout has constants of its own in every layer",
        remedy="set training.compile to false",
    ),
)
