"""Attention with a cache for each request, and vLLM's choice of a backend for values that are wider than keys."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.helpers.vllm.ranks import CURRENT


class WideValues:
    """Backend for values of another width than keys. One width for the whole process, as in vLLM."""

    head_size_v = 0

    @classmethod
    def set_head_size_v(cls, head_size_v: int) -> None:
        cls.head_size_v = head_size_v

    @classmethod
    def is_supported_on_current_device(cls, head_size: int, head_size_v: int, has_sinks: bool) -> bool:
        return False


class AttentionBackendEnum:
    FLASH_ATTN_DIFFKV = SimpleNamespace(name="FLASH_ATTN_DIFFKV", get_class=lambda: WideValues)
    TRITON_ATTN_DIFFKV = SimpleNamespace(name="TRITON_ATTN_DIFFKV", get_class=lambda: WideValues)


class Attention(nn.Module):
    """Causal attention of each request to its own tokens, which are cached per request."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        cache_config: Any = None,
        quant_config: Any = None,
        per_layer_sliding_window: int | None = None,
        prefix: str = "",
        attn_backend: Any = None,
        head_size_v: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = scale
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_size_v = head_size_v or head_size
        if self.head_size_v != head_size:
            assert attn_backend.head_size_v == self.head_size_v
        self.window = per_layer_sliding_window
        self.cache: dict[str, tuple[Tensor, Tensor]] = {}

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = query.view(-1, self.num_heads, self.head_size).transpose(0, 1)
        key = key.view(-1, self.num_kv_heads, self.head_size).transpose(0, 1)
        value = value.view(-1, self.num_kv_heads, self.head_size_v).transpose(0, 1)
        outputs = []
        first = 0
        for request, num_tokens in CURRENT.chunks:
            tokens = slice(first, first + num_tokens)
            outputs.append(self._attend(request, query[:, tokens], key[:, tokens], value[:, tokens]))
            first += num_tokens
        return torch.cat(outputs, dim=1).transpose(0, 1).flatten(1)

    def _attend(self, request: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if request in self.cache:
            cached_key, cached_value = self.cache[request]
            key = torch.cat([cached_key, key], dim=1)
            value = torch.cat([cached_value, value], dim=1)
        self.cache[request] = (key, value)
        num_groups = self.num_heads // self.num_kv_heads
        scores = query @ key.repeat_interleave(num_groups, 0).mT * self.scale
        num_earlier = key.shape[1] - query.shape[1]
        is_hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(num_earlier + 1)
        if self.window is not None:
            is_hidden |= torch.ones_like(is_hidden).tril(num_earlier - self.window)
        weights = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
        return weights @ value.repeat_interleave(num_groups, 0)
