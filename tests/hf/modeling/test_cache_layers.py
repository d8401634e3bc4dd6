"""Layers of the cache: growing ones keep every token, and those with a window keep the last ones."""

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from megatape.hf.modeling.cache_layers import GrowingLayer, WindowLayer


def run_operations(layer: DynamicLayer) -> list[Tensor]:
    """Do everything that generation does with a cache. Return the keys and values after each update."""
    generator = torch.Generator().manual_seed(1)
    contents: list[Tensor] = []

    def update(*lengths: int) -> None:
        """Append tokens: a number for each update."""
        for length in lengths:
            num_rows = 2
            if layer.keys is not None:
                num_rows = layer.keys.shape[0]
            keys = torch.randn(num_rows, 2, length, 4, generator=generator)
            values = torch.randn(num_rows, 2, length, 8, generator=generator)
            contents.extend(tensor.clone() for tensor in layer.update(keys, values))

    update(5, 1, 1)
    layer.reorder_cache(torch.LongTensor([1, 1]))
    update(1, 1)
    layer.crop(-2)
    update(1, 200, 1)
    layer.batch_repeat_interleave(2)
    update(1)
    layer.batch_select_indices(torch.tensor([3, 0]))
    update(1)
    layer.reset()
    update(3, 1)
    return contents


@torch.no_grad()
def test_a_window_layer_keeps_the_last_tokens() -> None:
    """The layer takes at most a window's memory, also after a long prompt. A view of all tokens would need more."""
    full = DynamicLayer()
    layer = WindowLayer(5)
    generator = torch.Generator().manual_seed(1)
    num_tokens = 0
    for length in (1, 2, 3, 1, 300, *[1] * 200, 7):
        new = torch.randn(2, 2, length, 4, generator=generator)
        expected, _ = full.update(new, new)
        found, _ = layer.update(new, new)
        assert torch.equal(found, expected[:, :, -min(num_tokens, 4) - length :])
        num_tokens += length
        assert layer.keys is not None
        assert torch.equal(layer.keys, expected[:, :, -min(num_tokens, 4) :])
        assert layer.get_seq_length() == num_tokens
        assert layer.keys.untyped_storage().nbytes() <= 2 * 2 * 80 * 4 * 4


@torch.no_grad()
def test_a_window_layer_removes_tokens_only_if_it_kept_earlier_ones() -> None:
    new = torch.randn(1, 1, 10, 4)
    layer = WindowLayer(5)
    layer.update(new, new)
    with pytest.raises(ValueError, match="generate without an assistant model"):
        layer.crop(-1)
    layer = WindowLayer(5)
    layer.activate_past_recording()
    layer.update(new, new)
    layer.crop(-3)
    assert layer.keys is not None
    assert torch.equal(layer.keys, new[:, :, 3:7])
    assert layer.get_seq_length() == 7


@torch.no_grad()
def test_a_growing_layer_equals_a_dynamic_one() -> None:
    for ours, theirs in zip(run_operations(GrowingLayer()), run_operations(DynamicLayer()), strict=True):
        assert torch.equal(ours, theirs)
