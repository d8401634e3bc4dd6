"""FLOPs of a model's forward pass, by formulas.

Multiply-adds per token are

* 2 D H R + 2 D L R per layer for the projections (queries and output, keys and values),
* 3 D F per layer in the MLP,
* D V in the head,

with hidden size D, H heads, L key/value heads, head size R, MLP size F and vocabulary size V. Attention has 2 H S per pair of
tokens, with S channels of queries and keys, and H W more in layers moving a position state of width W. A multiply-add counts
as two FLOPs.
"""

import torch

from megatape.accounting.parameters import meta_model
from megatape.attention.shifted import num_pairs
from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.encodings.encoding import positioned_layers
from megatape.model.lora import in_adapter


def forward_flops(config: ModelConfig, length: int, num_shifted_groups: int | None = None) -> int:
    """Return the FLOPs of all matrix products in the forward pass of one sequence.

    Like the paper's table and torch's counter, this counts all N x N scores, although half of them are masked; with shifted
    sparse attention, all scores within groups. A bias counts once for the whole batch. The last layer with positions skips its
    position update, so that does not count.

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
        # One multiply-add per parameter of an adapter.
        named = meta_model(config).named_parameters()
        per_token += sum(parameter.numel() for name, parameter in named if in_adapter(name))
    return 2 * length * per_token + attention_flops(config, length, num_shifted_groups)


def _encoding_multiply_adds(config: ModelConfig, length: int) -> int:
    """Return the position encoding's own multiply-adds per token, in all layers."""
    encoding = encoding_of(config)
    with torch.device("meta"):
        bias = encoding.bias(SINGLE)
        update = encoding.update(SINGLE)
        start = encoding.start(SINGLE)
        token_features = encoding.token_features(SINGLE)
        sequence_features = encoding.sequence_features(SINGLE)

    per_layer = 0
    for module in (token_features, sequence_features, bias):
        if module is not None:
            per_layer += module.multiply_adds
    if bias:
        per_layer += length * bias.pair_multiply_adds

    num_positioned = len(positioned_layers(config))
    total = num_positioned * per_layer
    if update:
        total += (num_positioned - 1) * update.multiply_adds
    if start:
        total += start.multiply_adds
    return total


def attention_flops(config: ModelConfig, length: int, num_shifted_groups: int | None = None) -> int:
    """Return attention's part of `forward_flops`: scores, A v and, where attention moves the state, A e.

    Args:
        config: Model section.
        length: Tokens in the sequence.
        num_shifted_groups: Groups of shifted sparse attention, None for dense attention.
    """
    encoding = encoding_of(config)
    pairs = length**2
    if num_shifted_groups is not None:
        pairs = num_pairs(length, num_shifted_groups)
    num_positioned = len(positioned_layers(config))
    num_others = config.num_layers - num_positioned
    widths = num_positioned * encoding.qk_width + num_others * config.head_dim
    state = 0
    if encoding.moves_state:
        state = (num_positioned - 1) * encoding.state_width
    return 2 * pairs * config.num_heads * (2 * widths + state)
