"""The section of low-rank adapters."""

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from megatape.config.section import Fixed, JsonList, Section
from megatape.errors import ConfigError

LoraTarget = Literal["query", "key", "value", "output", "gate", "up", "down"]


class LoraConfig(Section):
    """Low-rank adapters beside linear layers (docs/lora_and_long_context.md). training.trainable selects what else trains.

    Attributes:
        rank: r, width of an adapter; parameters and optimizer memory grow with it
        alpha: scale: adapter outputs are multiplied by alpha / rank
        dropout: probability of zeroing an adapter's input while training
        targets: layers with an adapter, in every block: query, key, value, output of attention,
            gate, up, down of the MLP
    """

    rank: Fixed[PositiveInt] = Field(le=2**16)
    alpha: Fixed[float] = Field(gt=0)
    dropout: Fixed[float] = Field(0.0, ge=0, lt=1)
    targets: Fixed[JsonList[LoraTarget]] = Field(("query", "key", "value", "output"), min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for target in self.targets:
            if self.targets.count(target) > 1:
                raise ConfigError(f"targets names {target} twice: remove one")
        return self
