"""The sections of the optimizer and its learning-rate schedule."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, PositiveInt

from megatape.config.kinds import Registered
from megatape.config.section import Compared, Fixed, Section
from megatape.registry import LEGACY_SCHEDULES, OPTIMIZERS, SCHEDULES

OptimizerName = Annotated[str, AfterValidator(Registered(OPTIMIZERS))]
ScheduleName = Annotated[str, AfterValidator(Registered(SCHEDULES, LEGACY_SCHEDULES))]


class OptimizerConfig(Section):
    """The optimizer, with the keys that every kind has.

    Norms, gains and biases are not decayed; attention gains learn L times faster.

    Attributes:
        kind: optimizer
        learning_rate: peak learning rate
        weight_decay: decoupled weight decay, scaled by the learning rate
        ema_decay: decay of an exponential moving average of the trained weights, such as 0.999: it
            is kept in float32 beside the master weights, evaluated and saved with them, and
            exported by `megatape export --weights ema` (docs/train.md); default: no average
    """

    kind: Fixed[OptimizerName] = "adamw"
    learning_rate: Compared[float] = Field(gt=0)
    weight_decay: Compared[float] = Field(0.01, ge=0)
    ema_decay: Compared[float | None] = Field(None, gt=0, lt=1)

    def is_whole(self, role: str) -> bool:
        """Whether the optimizer updates weights with this role (nn/parameters.py) as whole matrices."""
        return role == "matrix"


class ScheduleConfig(Section):
    """Learning-rate schedule: linear warm-up from 0, then a decay.

    Give each length as a fraction of all steps, `NAME_fraction`, or in tokens, `NAME_tokens`.

    Attributes:
        kind: decay after the warm-up
        warmup_fraction: warm-up, as a fraction of all steps
        warmup_tokens: warm-up in tokens, instead of warmup_fraction
        final_fraction: learning rate at the end of the decay, as a fraction of the peak
    """

    kind: Compared[ScheduleName] = "linear"
    warmup_fraction: Compared[float] = Field(0.02, ge=0, lt=1)
    warmup_tokens: Compared[PositiveInt | None] = None
    final_fraction: Compared[float] = Field(0.0, ge=0, le=1)

    @property
    def lengths(self) -> dict[str, int | None]:
        """Lengths in tokens by name, or None if given as a fraction."""
        fields = type(self).model_fields
        lengths = {}
        for field in fields:
            name = field.removesuffix("_tokens")
            if name != field and f"{name}_fraction" in fields:
                lengths[name] = getattr(self, field)
        return lengths

    def in_fractions(self, tokens: int) -> Self:
        """Return the same schedule with all lengths as fractions of the run's `tokens`."""
        fractions = {}
        for name, length in self.lengths.items():
            if length is not None:
                fractions[f"{name}_fraction"] = length / tokens
        return self.model_copy(update=fractions)

    def with_warmup(self, fraction: float) -> Self:
        """Return the same schedule with another warm-up, as a fraction of all steps."""
        return self.model_copy(update={"warmup_fraction": fraction})
