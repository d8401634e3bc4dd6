"""A DynamicCache that reserves capacity for more tokens; transformers' own copies all that it holds to append a token."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer


def reserve_capacity(cache: Cache | None) -> None:
    """Let a DynamicCache that is still empty, if it is one that stays on its device, grow without copies."""
    if cache is None or type(cache) is not DynamicCache or cache.offloading:
        return
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = GrowingLayer()


class GrowingLayer(DynamicLayer):
    """Keys and values are the first tokens of longer tensors, in which those of the next tokens follow."""

    keys: Tensor | None
    values: Tensor | None

    def lazy_initialization(self, *args: Any) -> None:
        """Called before the first update."""
        super().lazy_initialization(*args)
        self.key_buffer, self.value_buffer = Buffer(), Buffer()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """key_states, value_states: [B, L, N, .] of the new tokens. Returns those of all tokens, [B, L, K, .]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        self.keys = self.key_buffer.append(self.keys, key_states)
        self.values = self.value_buffer.append(self.values, value_states)
        return self.keys, self.values


class Buffer:
    """The longer tensor of keys or of values."""

    whole: Tensor
    filled: Tensor | None = None  # the part of it that the cache holds, since a token was last appended

    def append(self, held: Tensor, new: Tensor) -> Tensor:
        """What the cache holds, [B, L, P, .] or empty, followed by [B, L, N, .].

        Beams reorder what the cache holds, speculation crops it: then it is copied, as when the longer tensor is full.
        """
        if held.numel() == 0:
            return new
        if torch.is_grad_enabled():  # the backward pass may need what the cache holds now
            return torch.cat([held, new], dim=2)
        past, total = held.shape[2], held.shape[2] + new.shape[2]
        if held is not self.filled or total > self.whole.shape[2]:
            with torch.inference_mode(False):  # a tensor of inference mode could not be written to outside of it
                self.whole = new.new_empty(*held.shape[:2], total + total // 4 + 64, held.shape[3])
            self.whole[:, :, :past] = held
        self.whole[:, :, past:total] = new
        self.filled = self.whole[:, :, :total]
        return self.filled
