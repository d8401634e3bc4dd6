"""Cache that reserves capacity for more tokens. transformers' DynamicCache copies its content to append a token."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from megatape.encodings.encoding import Features


def reserve_capacity(cache: Cache | None) -> None:
    """Let the empty layers of a DynamicCache grow without copies. Other caches and offloaded ones stay as they are."""
    if cache is None or type(cache) is not DynamicCache or cache.offloading:
        return
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = GrowingLayer()


def carry_of(cache: Cache | None, layer: int) -> Features:
    """Return the carry of a layer from its last `extend`, () before the first tokens."""
    if cache is None or layer >= len(cache.layers):
        return ()
    return _growing_layer(cache, layer).carry


def extend(cache: Cache | None, layer: int, features: Features, carry: Features) -> Features:
    """Add features and carry of new tokens to the cache.

    Args:
        cache: Cache, None to add nothing.
        layer: Index of the layer.
        features: Features of the new tokens, each [B, N, heads, .].
        carry: Input of the encoding for the tokens after the new ones (SequenceFeatures).

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
    found = cache.layers[layer]
    if not isinstance(found, GrowingLayer):
        raise ValueError(
            f"the model's position encoding keeps more than keys and values, which {type(found).__name__} has no place for: "
            "use transformers' DynamicCache"
        )
    return found


class GrowingLayer(DynamicLayer):
    """Layer of a cache. Its keys and values are the first tokens of longer tensors, with room for the next tokens.

    Attributes:
        keys: Keys of all tokens, [B, L, K, .].
        values: Values of all tokens, [B, L, K, .].
        features: Features of all tokens, each [B, K, heads, .], for encodings that have some.
        carry: Input of the encoding for the next tokens (SequenceFeatures).
    """

    keys: Tensor | None
    values: Tensor | None
    features: Features = ()
    carry: Features = ()

    def lazy_initialization(self, *args: Any) -> None:
        """Make the buffers before the first update."""
        super().lazy_initialization(*args)
        self.key_buffer = Buffer()
        self.value_buffer = Buffer()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens, each [B, L, N, .]. Returns those of all tokens, [B, L, K, .]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        self.keys = self.key_buffer.append(self.keys, key_states)
        self.values = self.value_buffer.append(self.values, value_states)
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens. Assisted generation does so with wrong guesses."""
        num_before = self.get_seq_length()
        super().crop(tokens_to_remove)
        num_left = self.get_seq_length()
        if self.carry and num_left < num_before:
            raise ValueError("the model's position encoding sums along the sequence, and its cache cannot take tokens back")
        self.features = tuple(feature[:, :num_left] for feature in self.features)

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.features = ()
        self.carry = ()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows of the batch that beams continue."""
        super().reorder_cache(beam_idx)
        self._select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows of the batch."""
        super().batch_select_indices(indices)
        self._select_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
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
    """Tensor of keys or of values that is longer than the cache's content.

    Attributes:
        whole: The longer tensor, [B, L, capacity, .].
        filled: View of the part that the cache contained after the last token was appended, None before.
    """

    whole: Tensor
    filled: Tensor | None = None

    def append(self, content: Tensor, new: Tensor) -> Tensor:
        """Append new tokens to the content of the cache.

        The content is copied if the buffer is full, and if the cache contains another tensor than before, because beams have
        reordered it or speculation has cropped it.

        Args:
            content: Content of the cache, [B, L, P, .] or empty.
            new: New tokens, [B, L, N, .].

        Returns:
            New content of the cache, [B, L, P + N, .].
        """
        if content.numel() == 0:
            return new
        if torch.is_grad_enabled():
            # The backward pass may need the present content, so do not overwrite anything.
            return torch.cat([content, new], dim=2)

        batch, num_heads, num_past, width = content.shape
        total = num_past + new.shape[2]
        if content is not self.filled or total > self.whole.shape[2]:
            capacity = total + total // 4 + 64
            # A tensor of inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self.whole = new.new_empty(batch, num_heads, capacity, width)
            self.whole[:, :, :num_past] = content
        self.whole[:, :, num_past:total] = new
        self.filled = self.whole[:, :, :total]
        return self.filled
