"""Size of an exported model's cache."""

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings import layer_encodings
from megatape.encodings.encoding import Encoding, positioned_layers


def cache_bytes(config: ModelConfig, element_bytes: int, length: int) -> int:
    """Return the cache bytes of an exported model after a text: keys, values, state and features.

    The carry of sums and convolutions is not included, because its size does not depend on the number of tokens. A layer with a
    window W keeps the last W - 1 tokens, which the next one attends to.

    Args:
        config: Model section.
        element_bytes: Bytes per number in the model's precision.
        length: Number of tokens of the text.
    """
    last = positioned_layers(config)[-1]
    bytes_by_layer: dict[tuple[Encoding, bool], int] = {}
    total = 0
    for layer, (kind, encoding) in enumerate(zip(config.layer_kinds, layer_encodings(config), strict=True)):
        key = (encoding, layer == last)
        if key not in bytes_by_layer:
            bytes_by_layer[key] = _layer_bytes(config, encoding, element_bytes, is_last=layer == last)
        num_tokens = length
        if kind.window is not None:
            num_tokens = min(length, kind.window - 1)
        total += num_tokens * bytes_by_layer[key]
    return total


def _layer_bytes(config: ModelConfig, encoding: Encoding, element_bytes: int, is_last: bool) -> int:
    """Return the bytes of a token in one layer. The last layer with the model's encoding does not move the state."""
    bias = encoding.bias(SINGLE)
    features = _token_features(config, encoding)
    num_transient = len(features)
    key_bytes = element_bytes
    if bias is not None:
        num_transient = bias.num_transient
        if bias.rewrites_keys:
            key_bytes = torch.float32.itemsize
    value_width = config.head_dim
    if encoding.moves_state and not is_last:
        value_width += encoding.state_width
    per_head = value_width * element_bytes + encoding.qk_width * key_bytes
    cached_features = sum(feature.nbytes for feature in features[num_transient:])
    return config.num_kv_heads * per_head + cached_features


def _token_features(config: ModelConfig, encoding: Encoding) -> tuple[Tensor, ...]:
    """Return one token's features, on the CPU because the meta device would import the compiler."""
    token_features = encoding.token_features(SINGLE)
    sequence_features = encoding.sequence_features(SINGLE)
    features: tuple[Tensor, ...] = ()
    with torch.no_grad():
        if token_features is not None:
            h = torch.empty(1, 1, config.hidden_size)
            q = torch.empty(1, 1, config.num_heads, config.head_dim)
            features = token_features(h, q, q[:, :, : config.num_kv_heads])
        if sequence_features is not None:
            features, _ = sequence_features(features, None, ())
    return features
