"""FLOPs of a model's forward pass, by formulas.

Multiply-adds per token are

* 2 D H R + 2 D L R per layer for the projections (queries and output, keys and values),
* 3 D F per layer in the MLP,
* D V in the head,

with hidden size D, H heads, L key/value heads, head size R, MLP size F and vocabulary size V. Attention has 2 H S per pair of
tokens, with S channels of queries and keys, and H W more in layers moving a position state of width W. A multiply-add counts
as two FLOPs.
"""

from collections import Counter

import torch

from megatape.attention.shifted import num_pairs
from megatape.attention.windows import num_pairs_in_window
from megatape.config import ModelConfig
from megatape.config.layers.layer_pattern import LayerKind
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of, layer_encodings
from megatape.encodings.encoding import Encoding, positioned_layers
from megatape.model.build import meta_model
from megatape.model.lora import in_adapter


def forward_flops(config: ModelConfig, length: int, num_shifted_groups: int | None = None) -> int:
    """Return the FLOPs of all matrix products in the forward pass of one sequence.

    Like the paper's table and torch's counter, this counts all N x N scores, although half of them are masked; with shifted
    sparse attention, all scores within groups; with a window, all scores of tokens closer than the window, in both directions.
    A bias counts once for the whole batch. The last layer with the model's encoding skips its position update, so that does not
    count.

    Args:
        config: Model section.
        length: Tokens in the sequence.
        num_shifted_groups: Groups of shifted sparse attention, None for dense attention.
    """
    hidden = config.hidden_size
    projections = 2 * hidden * config.num_heads * config.head_dim + 2 * hidden * config.num_kv_heads * config.head_dim
    mlp = 3 * hidden * config.mlp_size
    head = hidden * config.vocab_size
    per_token = config.num_layers * (projections + mlp) + head
    per_token += _encoding_multiply_adds(config, length)
    if config.lora is not None:
        # Adapters add one multiply-add per parameter and token.
        named = meta_model(config).named_parameters()
        per_token += sum(parameter.numel() for name, parameter in named if in_adapter(name))
    return 2 * length * per_token + attention_flops(config, length, num_shifted_groups)


def _encoding_multiply_adds(config: ModelConfig, length: int) -> int:
    """Return the multiply-adds of position encodings per token, in all layers."""
    last = positioned_layers(config)[-1]
    total = 0
    start = encoding_of(config).start(SINGLE)
    if start:
        total += start.multiply_adds
    for (kind, encoding, is_last), count in _layer_counts(config, last).items():
        total += count * _layer_multiply_adds(encoding, kind.window, length, is_last)
    return total


def _layer_counts(config: ModelConfig, last: int) -> Counter[tuple[LayerKind, Encoding, bool]]:
    """Count equal layers: their kind, their encoding, and whether it is the last layer with the model's encoding."""
    layers = zip(config.layer_kinds, layer_encodings(config), strict=True)
    return Counter((kind, encoding, layer == last) for layer, (kind, encoding) in enumerate(layers))


def _layer_multiply_adds(encoding: Encoding, window: int | None, length: int, is_last: bool) -> int:
    """Return the multiply-adds of a layer's encoding per token. The last layer does not update the state."""
    with torch.device("meta"):
        bias = encoding.bias(SINGLE)
        update = encoding.update(SINGLE)
        token_features = encoding.token_features(SINGLE)
        sequence_features = encoding.sequence_features(SINGLE)
    total = 0
    for module in (token_features, sequence_features, bias):
        if module is not None:
            total += module.multiply_adds
    if bias:
        total += num_pairs_in_window(length, window) * bias.pair_multiply_adds // length
    if update and not is_last:
        total += update.multiply_adds
    return total


def attention_flops(config: ModelConfig, length: int, num_shifted_groups: int | None = None) -> int:
    """Return attention's part of `forward_flops`: scores, A v and, where attention moves the state, A e.

    Args:
        config: Model section.
        length: Tokens in the sequence.
        num_shifted_groups: Groups of shifted sparse attention, None for dense attention.
    """
    last = positioned_layers(config)[-1]
    flops = 0
    for (kind, encoding, is_last), count in _layer_counts(config, last).items():
        pairs = num_pairs_in_window(length, kind.window)
        if num_shifted_groups is not None:
            pairs = num_pairs(length, num_shifted_groups)
        width = 2 * encoding.qk_width
        if encoding.moves_state and not is_last:
            width += encoding.state_width
        flops += 2 * pairs * config.num_heads * width * count
    return flops
