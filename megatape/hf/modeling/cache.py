"""A DynamicCache that reserves capacity for more tokens; transformers' own copies all that it holds to append a token."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from megatape.encodings.encoding import Features


def reserve_capacity(cache: Cache | None) -> None:
    """Let a DynamicCache that is still empty, if it is one that stays on its device, grow without copies."""
    if cache is None or type(cache) is not DynamicCache or cache.offloading:
        return
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = GrowingLayer()


def carry_of(cache: Cache | None, layer: int) -> Features:
    """The carry of the last `extend` of this layer, empty at first."""
    if cache is None or layer >= len(cache.layers):
        return ()
    return _with_features(cache, layer).carry


def extend(cache: Cache | None, layer: int, features: Features, carry: Features) -> Features:
    """Remember the features of new tokens, each [B, N, heads, .], and what the next ones need. Returns those of all tokens."""
    if cache is None:
        return features
    held = _with_features(cache, layer)
    if held.features:
        features = tuple(torch.cat(parts, dim=1) for parts in zip(held.features, features, strict=True))
    held.features = features
    held.carry = carry
    return features


def replace_keys(cache: Cache, layer: int, keys: Tensor) -> None:
    """Let the next tokens find these keys of all tokens, [B, L, K, .]."""
    _with_features(cache, layer).keys = keys


def _with_features(cache: Cache, layer: int) -> "GrowingLayer":
    held = cache.layers[layer]
    if not isinstance(held, GrowingLayer):
        raise ValueError(
            f"the model's position encoding keeps more than keys and values, which {type(held).__name__} has no place for: use "
            "transformers' DynamicCache"
        )
    return held


class GrowingLayer(DynamicLayer):
    """Keys and values are the first tokens of longer tensors, in which those of the next tokens follow.

    features: of all tokens, for encodings that have them; carry: from SequenceFeatures.
    """

    keys: Tensor | None
    values: Tensor | None
    features: Features = ()
    carry: Features = ()

    def lazy_initialization(self, *args: Any) -> None:
        """Make the buffers, before the first update."""
        super().lazy_initialization(*args)
        self.key_buffer = Buffer()
        self.value_buffer = Buffer()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """key_states, value_states: [B, L, N, .] of the new tokens. Returns those of all tokens, [B, L, K, .]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        self.keys = self.key_buffer.append(self.keys, key_states)
        self.values = self.value_buffer.append(self.values, value_states)
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, as assisted generation does with those that it has guessed wrong."""
        before = self.get_seq_length()
        super().crop(tokens_to_remove)
        if self.carry and self.get_seq_length() < before:
            raise ValueError("the model's position encoding sums along the sequence, and its cache cannot take tokens back")
        self.features = tuple(feature[:, : self.get_seq_length()] for feature in self.features)

    def reset(self) -> None:
        """Forget all tokens."""
        super().reset()
        self.features = self.carry = ()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the rows of the batch that beams go on from."""
        super().reorder_cache(beam_idx)
        self._take_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        super().batch_select_indices(indices)
        self._take_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch."""
        super().batch_repeat_interleave(repeats)
        if held := (*self.features, *self.carry):
            self._take_rows(torch.arange(len(held[0])).repeat_interleave(repeats))

    def _take_rows(self, rows: Tensor) -> None:
        self.features, self.carry = (
            tuple(feature[rows.to(feature.device)] for feature in features) for features in (self.features, self.carry)
        )


class Buffer:
    """The longer tensor of keys or of values."""

    whole: Tensor
    filled: Tensor | None = None  # the part of it that the cache holds, since a token was last appended

    def append(self, held: Tensor, new: Tensor) -> Tensor:
        """Append [B, L, N, .] to the content of the cache, [B, L, P, .] or empty.

        Beams reorder what the cache holds, speculation crops it: then it is copied, as when the longer tensor is full.
        """
        if held.numel() == 0:
            return new
        if torch.is_grad_enabled():  # the backward pass may need what the cache holds now
            return torch.cat([held, new], dim=2)
        past = held.shape[2]
        total = held.shape[2] + new.shape[2]
        if held is not self.filled or total > self.whole.shape[2]:
            with torch.inference_mode(False):  # a tensor of inference mode could not be written to outside of it
                self.whole = new.new_empty(*held.shape[:2], total + total // 4 + 64, held.shape[3])
            self.whole[:, :, :past] = held
        self.whole[:, :, past:total] = new
        self.filled = self.whole[:, :, :total]
        return self.filled
