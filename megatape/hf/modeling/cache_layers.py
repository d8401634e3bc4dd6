"""Cache layers with spare capacity. transformers' DynamicCache copies all its tokens to append one."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from megatape.encodings.encoding import Features

from .cache_buffer import Buffer


class GrowingLayer(DynamicLayer):
    """Layer of a cache. Its keys and values are views of longer tensors with room for further tokens.

    Attributes:
        keys: Keys of all tokens, [B, L, K, .].
        values: Values of all tokens, [B, L, K, .].
        features: Features of all tokens, each [B, K, heads, .], if the encoding has any.
        carry: Carry for the next tokens (SequenceFeatures), if the encoding has one.
        start_carry: Carry of the initial state (StateInitializer) in the first layer, if the encoding has one.
    """

    keys: Tensor | None
    values: Tensor | None
    features: Features = ()
    carry: Features = ()
    start_carry: Features = ()

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

    def store(self, features: Features, carry: Features) -> None:
        """Store the features of all tokens, and the carry."""
        self.features = features
        self.carry = carry

    def replace_keys(self, keys: Tensor) -> None:
        """Replace the keys of all tokens, [B, L, K, .]."""
        self.keys = keys

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, such as wrong guesses in assisted generation."""
        num_before = self.get_seq_length()
        super().crop(tokens_to_remove)
        num_remaining = self.get_seq_length()
        if (self.carry or self.start_carry) and num_remaining < num_before:
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
        self.start_carry = ()

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
        tensors = (*self.features, *self.carry, *self.start_carry)
        if tensors:
            rows = torch.arange(len(tensors[0]))
            self._select_rows(rows.repeat_interleave(repeats))

    def _select_rows(self, rows: Tensor) -> None:
        """Select rows of features and carries."""
        self.features = tuple(feature[rows.to(feature.device)] for feature in self.features)
        self.carry = tuple(part[rows.to(part.device)] for part in self.carry)
        self.start_carry = tuple(part[rows.to(part.device)] for part in self.start_carry)


class WindowLayer(GrowingLayer):
    """Layer of a cache that keeps the tokens which the next one attends to: the last W - 1.

    Attributes:
        window: Number of tokens that a token attends to, W.
        num_dropped: Number of tokens before those in the cache.
        keeps_all: Whether to keep all tokens until the next `crop`, for assisted generation.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window
        self.num_dropped = 0
        self.keeps_all = False

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens. Returns those of the tokens in the cache before, and of the new ones."""
        keys, values = super().update(key_states, value_states)
        if not self.keeps_all:
            self._drop()
        return keys, values

    def store(self, features: Features, carry: Features) -> None:
        """Store the features of the tokens in the cache, and the carry."""
        super().store(tuple(self._kept(feature) for feature in features), carry)

    def replace_keys(self, keys: Tensor) -> None:
        """Replace the keys of the tokens in the cache."""
        assert self.values is not None
        self.keys = keys[:, :, keys.shape[2] - self.values.shape[2] :].clone()

    def get_seq_length(self) -> int:
        """Return the number of tokens, dropped ones included."""
        return self.num_dropped + super().get_seq_length()

    def activate_past_recording(self) -> None:
        """Keep all tokens until the next `crop`."""
        self.keeps_all = True

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, and those before the window."""
        if self.keys is None:
            return
        num_kept = self.keys.shape[2] + tokens_to_remove
        if tokens_to_remove and num_kept < min(self.window - 1, self.get_seq_length() + tokens_to_remove):
            raise ValueError(
                "the cache of a layer with a window has dropped tokens that the ones before the removed tokens attend to: "
                "generate without an assistant model"
            )
        num_dropped = self.num_dropped
        self.num_dropped = 0  # The features and the length that are cropped are those in the cache.
        super().crop(tokens_to_remove)
        self.num_dropped = num_dropped
        self._drop()
        self.features = tuple(self._kept(feature) for feature in self.features)

    def reset(self) -> None:
        """Remove all tokens."""
        super().reset()
        self.num_dropped = 0

    def _drop(self) -> None:
        """Drop the keys and values of tokens before the window."""
        assert self.keys is not None and self.values is not None
        num_before = self.keys.shape[2]
        self.keys = self.key_buffer.keep_last(self.keys, self.window - 1)
        self.values = self.value_buffer.keep_last(self.values, self.window - 1)
        self.num_dropped += num_before - self.keys.shape[2]

    def _kept(self, feature: Tensor) -> Tensor:
        """Return the part of a feature [B, K, heads, .] of the tokens in the cache."""
        assert self.keys is not None
        return feature[:, feature.shape[1] - self.keys.shape[2] :].clone()
