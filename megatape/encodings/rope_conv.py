"""RoPE with a short convolution on the keys, as a control for encodings that contain one.

    score(i, j) = q_i^T R(i - j) (k_j + c_j) / sqrt R
    c = SiLU(convolution of width 3 of W_up W_down h)

`path` and the `selective_rope` encodings read the tokens just before a key by a convolution. That alone lets one layer compare
a query with the token before a key. Here keys get PaTH's convolved features, before its normalization, and positions are
RoPE's. So the difference between `path` and `rope_conv` is what reflections add, and that between `rope_conv` and `rope` what
the convolution adds. The number of parameters is that of `path` without beta.

This package's own control: no paper has it in this form. Shapes as in model/transformer.py.
"""

from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.encodings.convolution import ConvolvedFeatures, LowRankFeatures
from megatape.encodings.encoding import Features, SequenceFeatures, TokenFeatures
from megatape.encodings.rope import Rope


class RopeConv(Rope):
    """RoPE whose keys have a convolved part."""

    equation = """
        score(i, j) = q_i^T R(i - j) (k_j + c_j) / sqrt R
        c = SiLU(convolution of width 3 of W_up W_down h)
    """

    def token_features(self, tensor_axis: Axis) -> TokenFeatures:
        config = self.config
        return LowRankFeatures(config.hidden_size, config.num_kv_heads, config.head_dim, tensor_axis)

    def sequence_features(self, tensor_axis: Axis) -> SequenceFeatures:
        return ConvolvedFeatures(self.config.num_kv_heads, self.config.head_dim, tensor_axis)

    def rotate_qk(
        self,
        q: Tensor,
        k: Tensor,
        state: Tensor | None,
        features: Features,
    ) -> tuple[Tensor, Tensor]:
        """Add c to the keys. Attention rotates them afterwards, by the position tensor."""
        (convolved,) = features  # [B, N, L/T, R]
        return q, (k.float() + convolved).to(k.dtype)
