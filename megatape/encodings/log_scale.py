"""Scalable softmax (Nakanishi, arXiv 2501.19399): scores grow with the logarithm of the number of visible keys.

    score(i, j) = s log n_i  q_i . k_j / sqrt R

n_i is the number of keys that query i sees, its own included. s is learned for each head. Without this factor, softmax over
more keys spreads attention ever thinner. It scales queries after the encoding has rotated them, but not the encoding's bias.

Shapes as in model/transformer.py.
"""

import math

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import EncodingModule
from megatape.nn.parameters import parameter


class LogScale(EncodingModule):
    """Factor s log n on the queries. It starts at 1 on average over n = 1 .. max_positions.

    Attributes:
        scale: s, [H], sharded by heads.
    """

    def __init__(self, config: ModelConfig, tensor_axis: Axis) -> None:
        super().__init__()
        max_keys = max(config.max_positions, 2)
        # log 1 + ... + log n = log n! = lgamma(n + 1)
        init = max_keys / math.lgamma(max_keys + 1)
        self.scale = parameter(
            (config.num_heads,),
            tensor_axis,
            0,
            init=init,
            decay=False,
            role="vector",
        )

    def forward(self, q: Tensor, num_keys: Tensor) -> Tensor:
        """Return the queries times s log n.

        Args:
            q: Queries [B, N, H/T, R].
            num_keys: Number of keys that each query sees, n: [B or 1, N].
        """
        log_keys = num_keys.to(torch.float32).log()[..., None]  # [B, N, 1]
        factors = self.local_heads(self.scale).float() * log_keys  # [B, N, H/T]
        return (q.float() * factors[..., None]).to(q.dtype)
