"""Learned absolute positions (Radford et al., GPT-2) in one file: a vector per position is added to the embedded tokens.

megatape pretrain --import examples/learned_absolute.py --config FILE --set model.encoding=learned_absolute
"""

import torch.nn.functional as F
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, PositionEmbedding
from megatape.nn.parameters import parameter
from megatape.registry import ENCODINGS, EncodingEntry


class LearnedEmbedding(PositionEmbedding):
    """Learned embedding of positions.

    Attributes:
        table: [max_positions, D], replicated on all tensor-parallel ranks.
    """

    def __init__(self, num_positions: int, hidden_size: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.table = parameter((num_positions, hidden_size), tensor_axis, decay=False, role="embedding")

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        # On a GPU, checking here would wait for the device. There the lookup has its own check, with a less helpful message.
        if position_ids.device.type == "cpu":
            last = int(position_ids.max())
            if last >= len(self.table):
                raise ValueError(
                    f"position {last} has no embedding: the model only has {len(self.table)} positions, shorten the text"
                )
        return x + F.embedding(position_ids, self.table)


class LearnedAbsolute(Encoding):
    """Learned positions 0 to model.max_positions - 1. Later positions are an error."""

    def embedding(self, tensor_axis: Axis) -> PositionEmbedding:
        return LearnedEmbedding(self.config.max_positions, self.config.hidden_size, tensor_axis)


ENCODINGS["learned_absolute"] = EncodingEntry(
    f"{__name__}:LearnedAbsolute", "learned absolute positions", divides_heads=True, reads_scores=False
)
