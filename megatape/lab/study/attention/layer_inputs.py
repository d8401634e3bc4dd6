"""Inputs of each layer's attention, and the probabilities and dot products recomputed from them.

Probabilities are recomputed because the model does not return them. Shapes as in model/transformer.py, on one rank.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from megatape.attention.rotation import PositionState, rotate_qk
from megatape.attention.windows import starts_in_window, visible
from megatape.encodings.encoding import Encoding
from megatape.model.attention import Attention
from megatape.model.transformer import Transformer


@dataclass(frozen=True)
class LayerInputs:
    """Inputs of a layer's attention.

    Attributes:
        attention: Attention module of the layer.
        encoding: The model's encoding.
        h: Normalized hidden states [B, N, D].
        positions: Position state entering the layer.
    """

    attention: Attention
    encoding: Encoding
    h: Tensor
    positions: PositionState

    @property
    def e(self) -> Tensor | None:
        """Position tensors, [B, N, L, W] if blocks update them."""
        if not self.encoding.carries_state:
            return self.positions.initial
        return self.positions.tensor(self.encoding.config.num_kv_heads)


class ForwardPass(NamedTuple):
    """Logits [B, N, V] of a forward pass, and each layer's attention inputs."""

    logits: Tensor
    layers: list[LayerInputs]


@torch.no_grad()
def run(model: Transformer, tokens: Tensor, positions: Tensor) -> ForwardPass:
    """Run a model, recording the attention inputs of every layer.

    Args:
        model: Model to run.
        tokens: Token ids [B, N].
        positions: Position ids [B, N].
    """
    layers: list[LayerInputs] = []

    def record(module: nn.Module, inputs: tuple[Tensor, PositionState, Tensor | None]) -> None:
        assert isinstance(module, Attention)
        h, positions, *_ = inputs
        layers.append(LayerInputs(module, model.encoding, h, positions))

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    hooks = [attention.register_forward_pre_hook(record) for attention in attentions]
    try:
        logits = model(tokens, positions)
    finally:
        for hook in hooks:
            hook.remove()
    return ForwardPass(logits, layers)


@torch.no_grad()
def probabilities(layer: LayerInputs) -> Tensor:
    """Return attention probabilities [B, H, N, N], queries by keys, in float32, from all N x N scores at once."""
    attention = layer.attention
    h = layer.h
    length = h.shape[1]
    q, k, _ = attention.heads(h)
    features = attention.features(h, q, k)
    q, k, bias = attention.encode(q, k, features, layer.positions.initial, None)
    if attention.encoding.has_position_tensor:
        state = PositionState(layer.positions.initial, attention.delta_for_attention(layer.positions))
        q, k = rotate_qk(q, k, state)
    groups = q.shape[2] // k.shape[2]
    everything = slice(0, length)
    keys = k.transpose(1, 2).repeat_interleave(groups, 1).mT
    scores = q.transpose(1, 2).float() @ keys.float() / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.block(bias.weights, everything, everything)
    starts = torch.zeros(1, length, dtype=torch.long, device=h.device)
    if attention.window is not None:
        starts = starts_in_window(q, starts, attention.window)
    hidden = ~visible(starts)[:, None]
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def dot_products(layer: LayerInputs) -> Tensor | None:
    """Return the inner products of all pairs of position tensors, divided by the number of planes.

    Rotary positions give the mean of cos((n - m) theta_k) over planes, which is 1 on the diagonal.

    Returns:
        [B, L, N, N], or [B, 1, N, N] if all channels are equal. None for an encoding without position tensors.
    """
    state = layer.e
    if state is None or not layer.encoding.has_position_tensor:
        return None
    e = state.transpose(1, 2).float()
    planes = e.shape[-1] // 2
    return e @ e.mT / planes
