"""Model generating scripted tokens."""

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig


class ScriptedModel:
    """Model continuing each prompt in a batch with scripted ids, then with 5s."""

    device = torch.device("cpu")

    def __init__(self, rows: list[list[int]], ends: int | list[int] | None) -> None:
        self.rows = rows
        self.generation_config = GenerationConfig(eos_token_id=ends)

    def generate(self, tokens: Tensor, stopping_criteria: list[Any], max_new_tokens: int, **options: Any) -> Tensor:
        done = torch.zeros(len(self.rows), dtype=torch.bool)
        for step in range(max_new_tokens):
            column = torch.tensor([self._token(row, step) for row in self.rows])
            column = column.where(~done, options["pad_token_id"])
            tokens = torch.cat([tokens, column[:, None]], dim=1)
            done |= stopping_criteria[0](tokens, None)
            if done.all():
                break
        return tokens

    def _token(self, row: list[int], step: int) -> int:
        if step < len(row):
            return row[step]
        return 5
