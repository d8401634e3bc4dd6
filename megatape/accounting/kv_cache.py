"""Size of an exported model's cache."""

import torch
from torch import Tensor

from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings import encoding_of
from megatape.encodings.encoding import Encoding, positioned_layers


def cache_bytes(config: ModelConfig, element_bytes: int) -> int:
    """Return the cache bytes per token of an exported model: keys, values, state and features.

    The carry of sums and convolutions is not included, because its size does not depend on the number of tokens.

    Args:
        config: Model section.
        element_bytes: Bytes per number in the model's precision.
    """
    encoding = encoding_of(config)
    bias = encoding.bias(SINGLE)
    features = _token_features(config, encoding)
    num_transient = len(features)
    key_bytes = element_bytes
    if bias is not None:
        num_transient = bias.num_transient
        if bias.rewrites_keys:
            key_bytes = torch.float32.itemsize

    num_positioned = len(positioned_layers(config))
    num_others = config.num_layers - num_positioned
    state_width = 0
    if encoding.moves_state:
        state_width = (num_positioned - 1) * encoding.state_width
    plain_keys = num_others * config.head_dim
    values = config.num_layers * config.head_dim
    encoded_keys = num_positioned * encoding.qk_width

    per_head = (plain_keys + values + state_width) * element_bytes + encoded_keys * key_bytes
    cached_features = sum(feature.nbytes for feature in features[num_transient:])
    return config.num_kv_heads * per_head + num_positioned * cached_features


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
