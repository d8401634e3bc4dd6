"""Settings that shifted sparse attention (training.num_shifted_groups) does not support."""

from megatape.config import Config, TrainingConfig
from megatape.config.limits import Incompatibility, Limit, ValueOf, indivisible
from megatape.registry import ENCODINGS


def _is_shifted(training: TrainingConfig) -> bool:
    return training.num_shifted_groups is not None


def _encodings() -> str:
    names = [name for name, entry in ENCODINGS.items() if entry.shiftable]
    return f"remove it, or choose {', '.join(names)}"


def _unequal_groups(config: Config) -> str | None:
    groups = config.training.num_shifted_groups
    if groups is None:
        return None
    reason = (
        f"{2 * groups}: the groups of training.num_shifted_groups {groups} are equal, and half of the heads shift them by half "
        "a group"
    )
    return indivisible(config.data.lengths, 2 * groups, reason)


def _odd_number_of_heads(config: Config) -> str | None:
    groups = config.training.num_shifted_groups
    if groups is None:
        return None
    heads = [("model.num_kv_heads", config.model.num_kv_heads)]
    return indivisible(heads, 2, f"2: training.num_shifted_groups {groups} shifts the groups of half of them; remove it")


LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility[Config](
        setting=ValueOf("training.num_shifted_groups"),
        case=ValueOf("model.attention_scale"),
        when=lambda config: _is_shifted(config.training) and config.model.attention_scale is not None,
        because="which counts the keys of a whole sample",
        remedy="remove one of them",
    ),
    Incompatibility[Config](
        setting=ValueOf("training.num_shifted_groups"),
        case="attention windows (model.layers and model.sliding_window)",
        when=lambda config: _is_shifted(config.training) and config.model.pattern.windows != {None},
        because="which are another sparse attention",
        remedy="remove one of them",
    ),
    Incompatibility[Config](
        setting=ValueOf("training.num_shifted_groups"),
        case=ValueOf("model.encoding", "encoding"),
        when=lambda config: _is_shifted(config.training) and not ENCODINGS[config.model.encoding].shiftable,
        because=None,
        remedy=_encodings,
    ),
    _unequal_groups,
    _odd_number_of_heads,
)
