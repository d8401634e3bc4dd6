"""Buffer with spare capacity for the keys or values of a cache."""

import torch
from torch import Tensor


class Buffer:
    """Tensor of keys or values that is longer than the cached tokens.

    Attributes:
        storage: Tensor with spare capacity, [B, L, capacity, .].
        content: View of the tokens in `storage` after the last change, None before the first `append` to others.
        end: Index after the last one of these tokens in `storage`.
    """

    storage: Tensor
    content: Tensor | None = None
    end: int = 0

    def append(self, cached: Tensor, new: Tensor) -> Tensor:
        """Append new tokens to the cached ones.

        Cached tokens are copied if the buffer is full, or if the cache no longer contains the result of the last change,
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
        num_new = new.shape[2]
        total = num_past + num_new
        if cached is not self.content or self.end + num_new > self.storage.shape[2]:
            # A tensor created in inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                self.storage = new.new_empty(batch, num_heads, _capacity(total), width)
            self.storage[:, :, :num_past] = cached
            self.end = num_past
        self.storage[:, :, self.end : self.end + num_new] = new
        self.end += num_new
        self.content = self.storage[:, :, self.end - total : self.end]
        return self.content

    def keep_last(self, tokens: Tensor, num_kept: int) -> Tensor:
        """Return the last tokens, and free the memory of the others.

        Args:
            tokens: Result of the last `append`, [B, L, K, .].
            num_kept: Number of tokens to keep at most.
        """
        num_dropped = tokens.shape[2] - num_kept
        if num_dropped <= 0:
            return tokens
        kept = tokens[:, :, num_dropped:]
        if tokens is self.content and self.storage.shape[2] <= _capacity(num_kept + 1):
            # Later tokens follow them in the storage.
            self.content = kept
            return kept
        return kept.clone()


def _capacity(num_tokens: int) -> int:
    """Return the capacity of a buffer for this number of tokens."""
    return num_tokens + num_tokens // 4 + 64
