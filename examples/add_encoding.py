"""A position encoding in one file: KERPLE's logarithmic bias (Chi et al., arXiv 2205.09921).

    megatape pretrain --import examples/add_encoding.py --config FILE --set model.encoding=kerple
    python -m examples.add_encoding FOLDER

Score += -r1 log(1 + r2 distance), with positive r1 and r2 for each head and layer. The encoding trains and resumes on any
number of ranks, and exports carry this file (docs/own_encodings.md). To add it to the package instead, put the classes into a
file in megatape/encodings/, and the entry of ENCODINGS into megatape/registry.py.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import softplus

from megatape.distributed.mesh import Axis
from megatape.encodings.encoding import Encoding, Features, LayerBias
from megatape.nn.parameters import parameter
from megatape.registry import ENCODINGS, EncodingEntry


class KerpleBias(LayerBias):
    """Bias by distance.

    Attributes:
        scales: [H, 2], sharded by heads. r1 and r2 are the softplus of the columns.
    """

    def __init__(self, num_heads: int, tensor_axis: Axis) -> None:
        super().__init__()
        self.scales = parameter((num_heads, 2), tensor_axis, 0, decay=False, role="position")

    def forward(self, q: Tensor, k: Tensor, features: Features) -> tuple[Tensor, ...]:
        """Compute the bias by distance, float32 [heads, N], for keys [B, N, heads, R]."""
        distances = torch.arange(k.shape[1], dtype=torch.float32, device=k.device)  # [N]
        r1, r2 = softplus(self.local_heads(self.scales).float()).unbind(1)  # [heads] each
        by_distance = -r1[:, None] * torch.log1p(r2[:, None] * distances)
        return (by_distance,)


class Kerple(Encoding):
    """KERPLE: a bias by distance, without rotation."""

    equation = "score(i, j) = q_i . k_j / sqrt R - r1_h log(1 + r2_h (i - j))"
    score_bias = "distance"

    def bias(self, tensor_axis: Axis) -> LayerBias:
        return KerpleBias(self.config.num_heads, tensor_axis)


ENCODINGS["kerple"] = EncodingEntry(
    f"{__name__}:Kerple", "KERPLE's logarithmic attention bias", divides_heads=True, by_layer=True, reads_scores=False
)

if __name__ == "__main__":
    from examples import train

    sys.exit(train.main(Path(sys.argv[1]), "model.encoding=kerple", *sys.argv[2:]))
