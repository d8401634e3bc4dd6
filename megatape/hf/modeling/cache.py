"""Access to caches of transformers: capacity and windows of their layers, and features beside keys and values."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer, StaticLayer

from megatape.encodings.encoding import Features

from .cache_layers import GrowingLayer, WindowLayer


def reserve_capacity(cache: Cache | None, windows: Sequence[int | None]) -> None:
    """Make the empty layers of a DynamicCache grow without copying, and keep no more tokens than a layer's window needs.

    Other caches and offloaded ones do not change.

    Args:
        cache: Cache, or None without a cache.
        windows: Number of tokens that a token attends to in each layer, None for all.
    """
    if cache is None or type(cache) is not DynamicCache or cache.offloading:
        return
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
        cache.layers += [_new_layer(window) for window in windows[len(cache.layers) :]]
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = _new_layer(windows[index])


def _new_layer(window: int | None) -> GrowingLayer:
    if window is None:
        return GrowingLayer()
    return WindowLayer(window)


def first_key_of(cache: Cache | None, layer: int) -> int:
    """Return the index in its row of the first token that a layer's next keys include."""
    if cache is None or layer >= len(cache.layers):
        return 0
    cache_layer = cache.layers[layer]
    if isinstance(cache_layer, WindowLayer):
        return cache_layer.num_dropped
    return 0


def carry_of(cache: Cache | None, layer: int) -> Features:
    """Return the carry that the last `extend` stored in a layer, or () before the first tokens."""
    if cache is None or layer >= len(cache.layers):
        return ()
    return _growing_layer(cache, layer).carry


def extend(cache: Cache | None, layer: int, features: Features, carry: Features) -> Features:
    """Append features of new tokens to the cache, and replace the carry.

    Args:
        cache: Cache, or None without a cache.
        layer: Layer index.
        features: Features of the new tokens, each [B, N, heads, .].
        carry: Carry for the tokens after the new ones (SequenceFeatures).

    Returns:
        Features of all tokens, each [B, K, heads, .].
    """
    if cache is None:
        return features
    growing = _growing_layer(cache, layer)
    if growing.features:
        pairs = zip(growing.features, features, strict=True)
        features = tuple(torch.cat([cached, new], dim=1) for cached, new in pairs)
    growing.store(features, carry)
    return features


def start_carry_of(cache: Cache | None) -> Features:
    """Return the carry of the initial state, or () before the first tokens."""
    if cache is None or not cache.layers:
        return ()
    return _growing_layer(cache, 0).start_carry


def store_start_carry(cache: Cache | None, carry: Features) -> None:
    """Store the carry of the initial state in the first layer."""
    if cache is not None:
        _growing_layer(cache, 0).start_carry = carry


def has_unused_keys(cache: Cache | None) -> bool:
    """Whether unused keys follow those of the new tokens."""
    return cache is not None and any(isinstance(layer, StaticLayer) for layer in cache.layers)


def replace_keys(cache: Cache, layer: int, keys: Tensor) -> None:
    """Replace the keys of the tokens in a layer, [B, L, K, .]: those that the last update returned."""
    _growing_layer(cache, layer).replace_keys(keys)


def _growing_layer(cache: Cache, layer: int) -> GrowingLayer:
    """Return a layer of the cache. Raises ValueError if it cannot store features."""
    cache_layer = cache.layers[layer]
    if not isinstance(cache_layer, GrowingLayer):
        raise ValueError(
            f"the model's position encoding caches more than keys and values, which {type(cache_layer).__name__} cannot store: "
            "use transformers' DynamicCache"
        )
    return cache_layer
