"""Learned absolute positions for exported models."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init

from .encoding import Encoding, PositionEmbedding


class LearnedEmbedding(PositionEmbedding):
    """table: [max_position_embeddings, C]."""

    def __init__(self, num_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(num_positions, hidden_size))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        if positions.device.type == "cpu" and (last := int(positions.max())) >= len(self.table):  # a GPU's own check says less
            raise ValueError(f"position {last} has no embedding: the model was trained with {len(self.table)} positions")
        return x + F.embedding(positions, self.table)

    def init_weights(self, std: float) -> None:
        init.normal_(self.table, mean=0.0, std=std)


class LearnedAbsolute(Encoding):
    """See above."""

    def embedding(self) -> PositionEmbedding:
        return LearnedEmbedding(self.config.max_position_embeddings, self.config.hidden_size)
