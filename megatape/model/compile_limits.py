"""Settings that compiled blocks (training.compile) do not support."""

from megatape.config import Config
from megatape.config.limits import Incompatibility, Limit, ValueOf

LIMITS: tuple[Limit[Config], ...] = (
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
