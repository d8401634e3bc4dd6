"""The section that rescales rotary frequencies for longer contexts. Its keys depend on its kind."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from megatape.config.kinds import ByKind
from megatape.config.section import Fixed, Section
from megatape.errors import ConfigError


class ScalingConfig(Section):
    """Rescaling of the rotary frequencies for a context `factor` times longer (`rope` and `tape`).

    Attributes:
        kind: linear divides positions by the factor, theta raises the base (NTK-aware), yarn and
            llama3 scale each frequency by its wavelength
        factor: longer context divided by the original one
    """

    kind: Fixed[Literal["linear", "theta", "yarn", "llama3"]]
    factor: Fixed[float] = Field(gt=1)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, raw: Any) -> Any:
        """Drop null keys that belong to other kinds: earlier versions wrote the keys of all kinds."""
        if not isinstance(raw, dict):
            return raw
        values = {}
        for name, value in raw.items():
            is_foreign = name not in cls.model_fields and SCALING_KINDS.kinds_with(name)
            if value is not None or not is_foreign:
                values[name] = value
        return values


class YarnScaling(ScalingConfig):
    """YaRN (https://arxiv.org/abs/2309.00071).

    Attributes:
        original_length: maximum sequence length before scaling
        beta_fast: frequencies with more turns within original_length stay unchanged
        beta_slow: frequencies with fewer turns are divided by the factor
        truncate: round the range between beta_fast and beta_slow to whole planes
        attention_factor: modulus of both rotations; default 0.1 ln(factor) + 1
    """

    original_length: Fixed[int] = Field(gt=0)
    beta_fast: Fixed[float] = Field(32.0, gt=0)
    beta_slow: Fixed[float] = Field(1.0, gt=0)
    truncate: Fixed[bool] = True
    attention_factor: Fixed[float | None] = Field(None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.beta_slow >= self.beta_fast:
            raise ConfigError(f"beta_slow {self.beta_slow} is not below beta_fast {self.beta_fast}: exchange them")
        return self


class Llama3Scaling(ScalingConfig):
    """Scaling of Llama 3.1.

    Attributes:
        original_length: maximum sequence length before scaling
        low_freq_factor: frequencies with fewer turns within original_length are divided by the
            factor
        high_freq_factor: frequencies with more turns stay unchanged
    """

    original_length: Fixed[int] = Field(gt=0)
    low_freq_factor: Fixed[float] = Field(gt=0)
    high_freq_factor: Fixed[float] = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        low = self.low_freq_factor
        high = self.high_freq_factor
        if low >= high:
            raise ConfigError(f"low_freq_factor {low} is not below high_freq_factor {high}: exchange them")
        return self


@dataclass(frozen=True)
class _Kind:
    """Entry of a kind for ByKind."""

    options: type[ScalingConfig]

    def load_options(self) -> type[ScalingConfig]:
        return self.options


SCALINGS: dict[str, type[ScalingConfig]] = {
    "linear": ScalingConfig,
    "theta": ScalingConfig,
    "yarn": YarnScaling,
    "llama3": Llama3Scaling,
}
SCALING_KINDS = ByKind({kind: _Kind(options) for kind, options in SCALINGS.items()}, "", ScalingConfig)
