"""Scalable softmax (Nakanishi, arXiv 2501.19399): scores grow with the logarithm of the number of keys that a query sees.

    score(i, j) = s log n_i  q_i . k_j / sqrt R        n_i keys, the query's own among them; s is learned for each head

Without it attention fades over many keys. It multiplies what encodings make of queries and keys, and no bias on the scores.
"""

import math

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import EncodingModule
from megatape.nn.parameters import parameter


class LogScale(EncodingModule):
    """s, [H], divided by heads. It starts where s log n is 1 in the mean over n = 1 .. max_positions."""

    def __init__(self, config: ModelConfig, tensor_axis: Axis) -> None:
        super().__init__()
        most = max(config.max_positions, 2)
        self.scale = parameter(
            (config.num_heads,), tensor_axis, 0, init=most / math.lgamma(most + 1), decay=False, role="vector"
        )

    def forward(self, q: Tensor, num_keys: Tensor) -> Tensor:
        """Queries [B, N, H/T, R] times s log n. num_keys: n, [B or 1, N]."""
        factors = self.local_heads(self.scale).float() * num_keys.to(torch.float32).log()[..., None]
        return (q.float() * factors[..., None]).to(q.dtype)
