"""Interface of the models that tasks evaluate. B texts, N tokens."""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class ModelOutline(Protocol):
    """The part of a model that tasks need for building examples: tokenizer and limits, but no weights.

    Attributes:
        name: Folder of the model, for messages.
        tokenizer: Tokenizer of transformers.
    """

    name: str
    tokenizer: Any

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def max_positions(self) -> int:
        """Number of tokens of the longest text."""


class EvaluationModel(ModelOutline, Protocol):
    """A trained model."""

    def logits(self, tokens: "Tensor") -> "Tensor":
        """Return the logits, float32 [B, N, V], for ids [B, N], on the model's device."""

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue each prompt greedily by `num_tokens` ids, or fewer if the model ends the text.

        Args:
            prompts: Ids of each prompt, equally many.
            num_tokens: Number of ids to add.
        """
