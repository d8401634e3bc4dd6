"""What attention did in a forward pass, found again from its inputs: the model itself returns no probabilities.

Shapes as in model/transformer.py, on one rank.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from megatape.attention.sdpa import visible
from megatape.model.attention import Attention
from megatape.model.transformer import Transformer


@dataclass(frozen=True)
class LayerInputs:
    """What a layer's attention got: h [B, N, C], normed content, and e, the encoding's state as it enters the layer."""

    attention: Attention
    h: Tensor
    e: Tensor | None


@torch.no_grad()
def run(model: Transformer, tokens: Tensor, positions: Tensor) -> tuple[Tensor, list[LayerInputs]]:
    """Logits [B, N, V] of tokens and positions [B, N], and the inputs of every layer's attention."""
    layers: list[LayerInputs] = []

    def note(module: nn.Module, inputs: tuple[Tensor, Tensor | None, Tensor | None, bool]) -> None:
        assert isinstance(module, Attention)
        layers.append(LayerInputs(module, inputs[0], inputs[1]))

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    hooks = [attention.register_forward_pre_hook(note) for attention in attentions]
    try:
        logits = model(tokens, positions)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, layers


@torch.no_grad()
def probabilities(layer: LayerInputs) -> Tensor:
    """Attention of every query (row) to every key, [B, H, N, N], float32, by the definition and with all N x N scores at once."""
    attention, h = layer.attention, layer.h
    q, k = (projection(h).unflatten(-1, (-1, attention.head_dim)) for projection in (attention.query, attention.key))
    q, k = attention.encoding.rotate_qk(q, k, layer.e)
    groups, everything = q.shape[2] // k.shape[2], slice(0, h.shape[1])
    scores = (
        q.transpose(1, 2).float() @ k.transpose(1, 2).repeat_interleave(groups, 1).mT.float() / math.sqrt(attention.head_dim)
    )
    if attention.bias is not None:
        bias = attention.bias.scores(attention.bias(q), layer.e)
        scores = scores + bias.block(bias.weights, everything, everything)
    seen = visible(torch.zeros(1, h.shape[1], dtype=torch.long, device=h.device))[:, None]
    return scores.masked_fill(~seen, -math.inf).softmax(-1)


def dot_products(layer: LayerInputs) -> Tensor | None:
    """Inner products of the position tensors of all pairs of tokens, over the planes of a channel: [B, L, N, N], or [B, 1, N, N] where
    all channels have the same.

    Divided by the inner product of an unmoved tensor with itself, so that rotary positions give 1 on the diagonal and the mean of
    cos((n - m) theta_k) over planes elsewhere. None for an encoding that has no position tensor."""
    if layer.e is None or not layer.attention.encoding.has_position_tensor:
        return None
    e = layer.e.transpose(1, 2).float()
    planes = e.shape[-1] // 2
    return e @ e.mT / planes
