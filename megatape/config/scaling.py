"""The section that rescales rotary frequencies for longer contexts."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from megatape.config.section import Fixed, Section
from megatape.errors import ConfigError

# Keys of each kind of scaling besides the factor, with their defaults. Required keys have ... as default.
_YARN = {"original_length": ..., "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "attention_factor": None}
_LLAMA3 = {"original_length": ..., "low_freq_factor": ..., "high_freq_factor": ...}
SCALINGS: dict[str, dict[str, Any]] = {"linear": {}, "theta": {}, "yarn": _YARN, "llama3": _LLAMA3}


class ScalingConfig(Section):
    """Rescaling of the rotary frequencies for a context `factor` times longer (`rope` and `tape`).

    Attributes:
        kind: linear divides positions by the factor, theta raises the base (NTK-aware), yarn and
            llama3 scale each frequency by its wavelength
        factor: ratio of the longer context to the original one
        original_length: maximum length of a sequence before scaling (yarn, llama3: required)
        beta_fast: frequencies with more turns within original_length are kept (yarn; default 32)
        beta_slow: frequencies with fewer turns are divided by the factor (yarn; default 1)
        truncate: round the range between beta_fast and beta_slow to whole planes (yarn; default
            true)
        attention_factor: modulus of both rotations (yarn; default 0.1 ln(factor) + 1)
        low_freq_factor: frequencies with fewer turns within original_length are divided by the
            factor (llama3: required)
        high_freq_factor: frequencies with more turns are kept (llama3: required)
    """

    kind: Fixed[Literal["linear", "theta", "yarn", "llama3"]]
    factor: Fixed[float] = Field(gt=1)
    original_length: Fixed[int | None] = Field(None, gt=0)
    beta_fast: Fixed[float | None] = Field(None, gt=0)
    beta_slow: Fixed[float | None] = Field(None, gt=0)
    truncate: Fixed[bool | None] = None
    attention_factor: Fixed[float | None] = Field(None, gt=0)
    low_freq_factor: Fixed[float | None] = Field(None, gt=0)
    high_freq_factor: Fixed[float | None] = Field(None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        defaults: dict[str, Any] = {"kind": ..., "factor": ...} | SCALINGS[self.kind]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in defaults:
                if value is not None:
                    kinds = " and ".join(kind for kind, keys in SCALINGS.items() if name in keys)
                    raise ConfigError(
                        f"{name} {value} has no effect with scaling of kind {self.kind}, but with {kinds}: remove it"
                    )
            elif defaults[name] is not ...:
                self._default(name, defaults[name])
            elif value is None:
                raise ConfigError(f"scaling of kind {self.kind} needs {name}: {field.description}")
        self._check_below("beta_slow", "beta_fast")
        self._check_below("low_freq_factor", "high_freq_factor")
        return self

    def _check_below(self, low: str, high: str) -> None:
        """Raise ConfigError unless one value is below another, if the kind has them."""
        least = getattr(self, low)
        most = getattr(self, high)
        if least is not None and least >= most:
            raise ConfigError(f"{low} {least} is not below {high} {most}: exchange them")
