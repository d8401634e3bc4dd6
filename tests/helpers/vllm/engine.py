"""Runs batches as vLLM does: tokens of several requests in one row, prompts in chunks, one cache for each layer and request."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.helpers.vllm.modules import VllmConfig
from tests.helpers.vllm.ranks import CURRENT, Chunk, Ranks


class Engine:
    """Runs an exported model on threads as tensor-parallel ranks.

    Args:
        model_class: Class of the model.
        folder: Exported folder.
        hf_config: Configuration of the model.
        weights: Name -> weight of the export.
        num_ranks: Number of tensor-parallel ranks.
    """

    def __init__(self, model_class: Any, folder: Path, hf_config: Any, weights: dict[str, Tensor], num_ranks: int = 1) -> None:
        self.ranks = Ranks(num_ranks)

        def build(rank: int) -> Any:
            self._enter(rank, ())
            model = model_class(vllm_config=VllmConfig(folder, hf_config))
            names = {name for name, _ in model.named_parameters()}
            assert model.load_weights(weights.items()) == names
            return model

        self.models = self._on_ranks(build)

    def run(self, tokens: Tensor, positions: Tensor, chunks: Sequence[Chunk]) -> Tensor:
        """Return the logits of new tokens, [N, vocabulary], after checking that ranks agree on them."""

        def forward(rank: int) -> Tensor:
            self._enter(rank, chunks)
            with torch.no_grad():
                model = self.models[rank]
                return model.compute_logits(model(tokens, positions))

        logits, *others = self._on_ranks(forward)
        for other in others:
            torch.testing.assert_close(other, logits)
        return logits

    def _enter(self, rank: int, chunks: Sequence[Chunk]) -> None:
        CURRENT.ranks = self.ranks
        CURRENT.rank = rank
        CURRENT.chunks = chunks

    def _on_ranks(self, function: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.ranks.size) as pool:
            return list(pool.map(function, range(self.ranks.size)))
