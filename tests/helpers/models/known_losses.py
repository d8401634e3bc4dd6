"""Models whose losses are known, and their perplexity."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import torch
from torch import Tensor

from megatape.data.shards.index import load_index
from megatape.data.tokenizers.files import stored_tokenizer
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.tasks.engine.runner import evaluate
from megatape.lab.tasks.perplexity.results import PerplexityScores
from megatape.lab.tasks.perplexity.task import Perplexity
from tests.helpers.runs.small_run import VOCAB_SIZE

Mode = Literal["disjoint", "sliding", "authors"]


def measure(
    loaded: LoadedModel,
    data: Path,
    lengths: tuple[int, ...],
    mode: Mode = "disjoint",
    stride: int | None = None,
    max_tokens: int = 2**17,
) -> PerplexityScores:
    """Measure perplexity on the first tokens of a text or of a data directory."""
    return evaluate(Perplexity(data, lengths, mode, stride, max_tokens), loaded)


class Pieces:
    """Tokenizer of the data, with the interface of transformers."""

    def __init__(self, data: Path) -> None:
        self.own = stored_tokenizer(data, load_index(data).tokenizer.files)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = self.own.encode(text)
        if add_special_tokens:
            ids = [*self.own.begin, *ids]
        return {"input_ids": ids}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        special = (self.own.bos_id, self.own.eos_id)
        return self.own.decode([token for token in ids if token not in special])


def known_loss(position: int) -> float:
    """Return the loss of `Ages` at a position in the window."""
    return math.log(2 + position % 7)


class Recorder:
    """Base of models that record their inputs, [sequences, tokens] each."""

    device = torch.device("cpu")
    base_model = None

    def __init__(self) -> None:
        self.config = SimpleNamespace(vocab_size=VOCAB_SIZE)
        self.inputs: list[Tensor] = []

    def sequences(self) -> list[list[int]]:
        """Return the sequences of all batches."""
        return [sequence for batch in self.inputs for sequence in batch.tolist()]


class Ages(Recorder):
    """Model whose loss depends on the position in the window alone, see `known_loss`."""

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        # A uniform guess over n tokens of which the target is one costs log(n), whatever the target.
        self.inputs.append(input_ids)
        logits = torch.full((*input_ids.shape, VOCAB_SIZE), -math.inf)
        for position in range(input_ids.shape[1]):
            loss = known_loss(position)
            targets = torch.roll(input_ids, -1, 1)[:, position]  # wrong at the last position, whose target is not in the input
            logits[:, position] = math.log((1 - math.exp(-loss)) / (VOCAB_SIZE - 1))
            logits[torch.arange(len(input_ids)), position, targets] = -loss
        return SimpleNamespace(logits=logits)


class Uniform(Recorder):
    """Model that knows nothing."""

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        self.inputs.append(input_ids)
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, VOCAB_SIZE))


class Diverged(Recorder):
    """Model that is sure of token 0."""

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, VOCAB_SIZE)
        logits[..., 0] = 1000.0
        return SimpleNamespace(logits=logits)
