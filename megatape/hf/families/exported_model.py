"""Description of an exported model, for config.json and the model card."""

from dataclasses import dataclass

import torch

from megatape.config import Config, ModelConfig
from megatape.hf.dtypes import stored_dtype
from megatape.hf.special_tokens import SpecialTokens


@dataclass(frozen=True)
class ExportedModel:
    """Exported model of a run.

    Attributes:
        model: Model section, without adapters.
        dtype: Precision of the stored weights.
        special: Control tokens of the tokenizer.
        sample_length: Tokens per training sample.
        seed: Training seed, used by encodings that draw positions.
        imports: User modules that the run imported.
    """

    model: ModelConfig
    dtype: torch.dtype
    special: SpecialTokens
    sample_length: int
    seed: int
    imports: tuple[str, ...]

    @classmethod
    def of_run(cls, config: Config, special: SpecialTokens) -> "ExportedModel":
        """Describe the model of a run, given the control tokens of its tokenizer."""
        return cls(
            model=config.model.without_adapters(),
            dtype=stored_dtype(config.export, config.training),
            special=special,
            sample_length=config.data.sequence_length,
            seed=config.training.seed,
            imports=tuple(config.run.imports),
        )
