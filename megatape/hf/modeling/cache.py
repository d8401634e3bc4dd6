"""Cache layers with spare capacity. transformers' DynamicCache copies all its tokens to append one."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from megatape.encodings.encoding import Features


def reserve_capacity(cache: Cache | None) -> None:
    """Make the empty layers of a DynamicCache grow without copying. Other caches and offloaded ones do not change."""
    if cache is None or type(cache) is not DynamicCache or cache.offloading:
        return
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = GrowingLayer()


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
    growing.features = features
    growing.carry = carry
    return features


def replace_keys(cache: Cache, layer: int, keys: Tensor) -> None:
    """Replace the keys of all tokens in a layer, [B, L, K, .]."""
    _growing_layer(cache, layer).keys = keys


def _growing_layer(cache: Cache, layer: int) -> "GrowingLayer":
    """Return a layer of the cache. Raises ValueError if it cannot store features."""
    cache_layer = cache.layers[layer]
    if not isinstance(cache_layer, GrowingLayer):
        raise ValueError(
            f"the model's position encoding caches more than keys and values, which {type(cache_layer).__name__} cannot store: "
            "use transformers' DynamicCache"
        )
    return cache_layer


class GrowingLayer(DynamicLayer):
    """Layer of a cache. Its keys and values are views of longer tensors with room for further tokens.

    Attributes:
        keys: Keys of all tokens, [B, L, K, .].
        values: Values of all tokens, [B, L, K, .].
        features: Features of all tokens, each [B, K, heads, .], if the encoding has any.
        carry: Carry for the next tokens (SequenceFeatures), if the encoding has one.
    """

    keys: Tensor | None
    values: Tensor | None
    features: Features = ()
    carry: Features = ()

    def lazy_initialization(self, *args: Any) -> None:
        """Create the buffers before the first update."""
        super().lazy_initialization(*args)
        self.key_buffer = Buffer()
        self.value_buffer = Buffer()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens, each [B, L, N, .]. Returns keys and values of all tokens, [B, L, K, .]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        self.keys = self.key_buffer.append(self.keys, key_states)
        self.values = self.value_buffer.append(self.values, value_states)
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, such as wrong guesses in assisted generation."""
        num_before = self.get_seq_length()
        super().crop(tokens_to_remove)
        num_remaining = self.get_seq_length()
        if self.carry and num_remaining < num_before:
            raise ValueError(
                "the model's position encoding sums along the sequence, so its cache cannot remove tokens: generate without an "
                "assistant model"
            )
        self.features = tuple(feature[:, :num_remaining] for feature in self.features)

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.features = ()
        self.carry = ()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the batch rows that beams continue."""
        super().reorder_cache(beam_idx)
        self._select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select batch rows."""
        super().batch_select_indices(indices)
        self._select_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch row."""
        super().batch_repeat_interleave(repeats)
        tensors = (*self.features, *self.carry)
        if tensors:
            rows = torch.arange(len(tensors[0]))
            self._select_rows(rows.repeat_interleave(repeats))

    def _select_rows(self, rows: Tensor) -> None:
        """Select rows of features and carry."""
        self.features = tuple(feature[rows.to(feature.device)] for feature in self.features)
        self.carry = tuple(part[rows.to(part.device)] for part in self.carry)


class Buffer:
    """Tensor of keys or values that is longer than the cached tokens.

    Attributes:
        storage: Tensor with spare capacity, [B, L, capacity, .].
        content: View of the tokens in `storage` after the last `append`, None before the first one.
    """

    storage: Tensor
    content: Tensor | None = None

    def append(self, cached: Tensor, new: Tensor) -> Tensor:
        """Append new tokens to the cached ones.

        Cached tokens are copied if the buffer is full, or if the cache no longer contains the result of the last `append`
        because beams were reordered or speculated tokens removed.

        Args:
            cached: Cached tokens, [B, L, P, .] or empty.
            new: New tokens, [B, L, N, .].

        Returns:
            All tokens, [B, L, P + N, .].
        """
        if cached.numel() == 0:
            return new
        if torch.is_grad_enabled():
            # The backward pass may need the cached tensor, so do not overwrite anything.
            return torch.cat([cached, new], dim=2)

        batch, num_heads, num_past, width = cached.shape
        total = num_past + new.shape[2]
        if cached is not self.content or total > self.storage.shape[2]:
            capacity = total + total // 4 + 64
            # A tensor created in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self.storage = new.new_empty(batch, num_heads, capacity, width)
            self.storage[:, :, :num_past] = cached
        self.storage[:, :, num_past:total] = new
        self.content = self.storage[:, :, :total]
        return self.content
