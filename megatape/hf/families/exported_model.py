"""Exported models, as their config.json and their model card describe them."""

from dataclasses import dataclass

import torch

from megatape.config import Config, ModelConfig
from megatape.hf.adapters.lora import without_adapters
from megatape.hf.dtypes import stored_dtype
from megatape.hf.special_tokens import SpecialTokens


@dataclass(frozen=True)
class ExportedModel:
    """Model of a run, as it is exported.

    Attributes:
        model: Model section, without adapters.
        dtype: Precision of the stored weights.
        special: Control tokens of the tokenizer.
        sample_length: Length of a training sample in tokens.
        seed: Seed of training, from which some encodings draw positions.
        imports: Modules of the user's own that the run imported.
    """

    model: ModelConfig
    dtype: torch.dtype
    special: SpecialTokens
    sample_length: int
    seed: int
    imports: tuple[str, ...]

    @classmethod
    def of_run(cls, config: Config, special: SpecialTokens) -> "ExportedModel":
        """Describe the model of a run.

        Args:
            config: Configuration of the run.
            special: Control tokens of its tokenizer.
        """
        return cls(
            model=without_adapters(config.model),
            dtype=stored_dtype(config.export, config.training),
            special=special,
            sample_length=config.data.sequence_length,
            seed=config.training.seed,
            imports=tuple(config.run.imports),
        )
