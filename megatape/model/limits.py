"""Settings excluded by the model's length limits, LoRA adapters and compiled blocks."""

from megatape.config import Config
from megatape.config.limits import Incompatibility, Limit, ValueOf

LORA_LIMITS: tuple[Limit[Config], ...] = (
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

COMPILE_LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting="training.compile",
        case="zero.stage 3",
        when=lambda config: config.training.compile and config.zero.stage == 3,
        because="which gathers weights in hooks of modules",
        remedy="choose stage 2, or set training.compile to false",
    ),
    Incompatibility[Config](
        setting="training.compile",
        case=ValueOf("parallel.tp"),
        when=lambda config: config.training.compile and config.parallel.tp > 1,
        because="whose exchanges lie within what is compiled",
        remedy="set parallel.tp to 1, or training.compile to false",
    ),
    Incompatibility[Config](
        setting="training.compile",
        case="training.activation_checkpointing selective",
        when=lambda config: config.training.compile and config.training.activation_checkpointing == "selective",
        because="since the compiler chooses what compiled blocks keep",
        remedy="choose none or full, or set training.compile to false",
    ),
    Incompatibility[Config](
        setting="training.compile",
        case="model.lora",
        when=lambda config: config.training.compile and config.model.lora is not None,
        because="whose dropout has constants of its own in every layer",
        remedy="set training.compile to false",
    ),
)


def _too_long_samples(config: Config) -> str | None:
    length = config.data.sequence_length
    positions = config.model.max_positions
    window = config.model.sliding_window
    if length > positions:
        return (
            f"data.sequence_length {length} is longer than model.max_positions {positions}: shorten the samples, or raise "
            "max_positions"
        )
    if window is not None and length > window:
        return f"data.sequence_length {length} is longer than model.sliding_window {window}: shorten the samples"
    return None


LENGTH_LIMITS: tuple[Limit[Config], ...] = (_too_long_samples,)
