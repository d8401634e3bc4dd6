"""Settings that shifted sparse attention (training.num_shifted_groups) does not support."""

from megatape.config import Config, TrainingConfig
from megatape.config.limits import Incompatibility, Limit, MultipleOf
from megatape.registry import ENCODINGS


def _is_shifted(training: TrainingConfig) -> bool:
    return training.num_shifted_groups is not None


def _encodings() -> str:
    names = [name for name, entry in ENCODINGS.items() if entry.shiftable]
    return f"remove it, or choose {', '.join(names)}"


def _half_groups(training: TrainingConfig) -> int:
    """Return the number of half groups of a sample."""
    assert training.num_shifted_groups is not None
    return 2 * training.num_shifted_groups


def _groups_reason(training: TrainingConfig) -> str:
    return (
        f"{_half_groups(training)}: the groups of training.num_shifted_groups {training.num_shifted_groups} are equal, and "
        "half of the heads shift them by half a group"
    )


LIMITS: tuple[Limit[Config], ...] = (
    Incompatibility(
        setting="training.num_shifted_groups {training.num_shifted_groups}",
        case="model.attention_scale {model.attention_scale}",
        when=lambda config: _is_shifted(config.training) and config.model.attention_scale is not None,
        because="which counts the keys of a whole sample",
        remedy="remove one of them",
    ),
    Incompatibility(
        setting="training.num_shifted_groups {training.num_shifted_groups}",
        case="encoding {model.encoding}",
        when=lambda config: _is_shifted(config.training) and not ENCODINGS[config.model.encoding].shiftable,
        because="",
        remedy=_encodings,
    ),
    MultipleOf(
        sizes=lambda config: config.data.lengths,
        divisor=lambda config: _half_groups(config.training),
        reason=lambda config: _groups_reason(config.training),
        when=lambda config: _is_shifted(config.training),
    ),
    MultipleOf(
        sizes=lambda config: [("model.num_kv_heads", config.model.num_kv_heads)],
        divisor=lambda config: 2,
        reason=lambda config: (
            f"2: training.num_shifted_groups {config.training.num_shifted_groups} shifts the groups of half of them; remove it"
        ),
        when=lambda config: _is_shifted(config.training),
    ),
)
