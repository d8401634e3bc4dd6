"""Settings that compiled blocks (training.compile) do not support."""

from megatape.config import Config
from megatape.config.limits import Incompatibility, Limit

LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting="training.compile",
        case="training.chunk_tokens on tensor-parallel ranks",
        when=lambda config: config.training.compile and config.parallel.tp > 1 and config.training.chunk_tokens is not None,
        because="which would gather the tokens of each chunk in another graph",
        remedy="remove training.chunk_tokens, or set training.compile to false",
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
