"""Interface of the models being evaluated. B texts, N tokens."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class ModelOutline(Protocol):
    """A model's tokenizer and limits, enough for building examples. No weights.

    Attributes:
        name: Model folder, for messages.
        tokenizer: Tokenizer of transformers.
    """

    name: str
    tokenizer: Any

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_positions(self) -> int:
        """Maximum text length in tokens."""


class EvaluationModel(ModelOutline, Protocol):
    """A trained model."""

    def logits(self, tokens: "Tensor") -> "Tensor":
        """Return the logits, float32 [B, N, V], for ids [B, N], on the model's device."""

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue each prompt greedily by `num_tokens` ids, or fewer if the model ends the text.

        Args:
            prompts: Prompt ids. All prompts have the same length.
            num_tokens: Number of ids to add.
        """
