"""Prompts are read by a flash kernel in memory that grows with the tokens; appending a token does not copy the cache."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer

from megatape.hf.modeling.attention import find_spans, one_query_attention
from megatape.hf.modeling.cache import GrowingLayer
from tests import bounds
from tests.bounds import assert_close
from tests.helpers.memory_checkpoint import VOCAB_SIZE
from tests.hf.conftest import Exported

# Rows of 20: padded on the left, on the right, on both sides, not at all, and nothing but padding.
SPANS = [(7, 20), (0, 9), (3, 18), (0, 20), (0, 0)]


def padded_mask() -> Tensor:
    mask = torch.zeros(len(SPANS), 20, dtype=torch.long)
    for row, span in enumerate(SPANS):
        mask[row, slice(*span)] = 1
    return mask


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (batch, length), generator=torch.Generator().manual_seed(7))


class Sizes(TorchDispatchMode):
    """The number of elements of the largest tensor made in the block."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [
            leaf.untyped_storage().nbytes() // leaf.element_size() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)
        ]
        self.largest = max(self.largest, *made, 0)
        return result


@torch.no_grad()
@pytest.mark.parametrize(
    ("shape", "encoding"), [("grouped", "tape"), ("plain", "tape"), ("odd", "tape"), ("grouped", "tape_vector")]
)
def test_prompts_take_the_flash_kernel(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """Whole, padded, and behind what a cache holds; with the logits of plain products."""
    found = exported(shape, encoding)
    model, plain = found.load(), found.load(attn_implementation="eager")
    batch, mask = tokens(len(SPANS), 20), padded_mask()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises where it does not support the arguments
        whole, padded = model(batch).logits, model(batch, attention_mask=mask).logits
        cache = model(batch[:, :12]).past_key_values
        rest = model(batch[:, 12:], past_key_values=cache).logits
    expected = plain(batch).logits
    assert_close(whole, expected, bounds.EXPORTED)
    assert_close(rest, expected[:, 12:], bounds.EXPORTED)
    theirs = plain(batch, attention_mask=mask).logits
    for row, span in enumerate(SPANS[:-1]):
        assert_close(padded[row, slice(*span)], theirs[row, slice(*span)], bounds.EXPORTED, what=span)
    assert padded.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_nothing_has_the_size_of_all_pairs(exported: Callable[..., Exported], padded: bool) -> None:
    model, length = exported("grouped").load().model, 512
    mask = torch.ones(2, length, dtype=torch.long)
    if padded:
        mask[0, :100] = 0
    with Sizes() as sizes:
        model(tokens(2, length), attention_mask=mask)
    assert 2 * length * 32 <= sizes.largest < length**2 // 2


def test_spans() -> None:
    assert find_spans(padded_mask()) == SPANS
    assert find_spans(torch.ones(2, 5)) is None
    assert find_spans(torch.tensor([[0, 1, 0, 1], [1, 1, 1, 1]])) is None


def test_padding_between_tokens_is_masked(exported: Callable[..., Exported]) -> None:
    found, batch = exported("grouped"), tokens(2, 12)
    mask = torch.ones_like(batch)
    mask[0, 4:6] = 0
    with torch.no_grad():
        logits, expected = (
            found.load(attn_implementation=name)(batch, attention_mask=mask).logits for name in ("sdpa", "eager")
        )
    assert_close(logits[mask.bool()], expected[mask.bool()], bounds.EXPORTED)


@pytest.mark.parametrize("mask", [None, "hidden", "added", "added by head"])
def test_one_query(mask: str | None) -> None:
    """Against torch's attention on repeated keys."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 6, 1, 8), torch.randn(2, 3, 11, 8), torch.randn(2, 3, 11, 20)
    given = {
        None: None,
        "hidden": torch.arange(11).expand(2, 1, 1, 11) > torch.tensor([0, 4])[:, None, None, None],
        "added": torch.randn(2, 1, 1, 11),
        "added by head": torch.randn(2, 6, 1, 11),
    }[mask]
    keys, values = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=given, scale=0.3)
    assert_close(one_query_attention(query, key, value, given, 0.3), expected.transpose(1, 2), bounds.ATTENTION)


def operations(layer: DynamicLayer) -> list[Tensor]:
    """What a layer holds after each of the things that generation does with it."""
    generator = torch.Generator().manual_seed(1)
    held = []
    for step in (5, 1, 1, "reorder", 1, 1, "crop", 1, 200, 1, "repeat", 1, "select", 1, "reset", 3, 1):
        if step == "reorder":
            layer.reorder_cache(torch.LongTensor([1, 1]))
        elif step == "crop":
            layer.crop(-2)
        elif step == "repeat":
            layer.batch_repeat_interleave(2)
        elif step == "select":
            layer.batch_select_indices(torch.tensor([3, 0]))
        elif step == "reset":
            layer.reset()
        else:
            assert isinstance(step, int)
            rows = layer.keys.shape[0] if layer.keys is not None else 2
            made = [torch.randn(rows, 2, step, width, generator=generator) for width in (4, 8)]
            held += [tensor.clone() for tensor in layer.update(*made)]
    return held


@torch.no_grad()
def test_a_growing_layer_holds_what_a_dynamic_one_does() -> None:
    for ours, theirs in zip(operations(GrowingLayer()), operations(DynamicLayer()), strict=True):
        assert torch.equal(ours, theirs)


@torch.no_grad()
def test_appending_copies_the_new_token_only(exported: Callable[..., Exported]) -> None:
    """In caches that `generate` makes and in those of the caller."""
    model, batch = exported("grouped").load(), tokens(2, 9)
    for cache in (None, DynamicCache(), DynamicCache(config=model.config)):
        cache = model(batch, past_key_values=cache).past_key_values
        places = []
        for _ in range(4):
            model(batch[:, :1], past_key_values=cache)
            places.append([part.data_ptr() for layer in cache.layers for part in (layer.keys, layer.values)])
        assert places[1:] == places[:-1]
    static = StaticCache(config=model.config, max_cache_len=12)
    assert not any(isinstance(layer, GrowingLayer) for layer in model(batch, past_key_values=static).past_key_values.layers)


def test_gradients_pass_through_the_cache(exported: Callable[..., Exported]) -> None:
    """With gradients nothing is written into what the backward pass may need."""
    model, batch = exported("plain").load(), tokens(1, 9)
    gradients = []
    for pieces in (batch,), (batch[:, :4], batch[:, 4:7], batch[:, 7:]):
        model.zero_grad()
        cache = DynamicCache(config=model.config)
        logits = torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1)
        logits.square().sum().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad.clone())
    assert_close(gradients[1], gradients[0], bounds.PACKED_GRADIENTS)


def test_a_cache_of_inference_mode_goes_on_outside_of_it(exported: Callable[..., Exported]) -> None:
    model, batch = exported("grouped").load(), tokens(1, 9)
    with torch.inference_mode():
        cache = model(batch[:, :6]).past_key_values
        model(batch[:, 6:7], past_key_values=cache)
    with torch.no_grad():
        model(batch[:, 7:8], past_key_values=cache)
        logits = model(batch[:, 8:], past_key_values=cache).logits
        assert_close(logits[:, -1], model(batch).logits[:, -1], bounds.EXPORTED)


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_step_decodes_the_same(exported: Callable[..., Exported]) -> None:
    """Without a graph break, and without compiling again for the next token; one text is padded, the other is not.

    The code that Inductor would make of the graph is not ours: without it this takes a fifth of the time."""
    model, batch = exported("grouped").load(), tokens(2, 9)
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, :3] = 0
    torch.compiler.reset()
    compiled = torch.compile(model.forward, backend="aot_eager", fullgraph=True, dynamic=False)
    static, dynamic = StaticCache(config=model.config, max_cache_len=16), DynamicCache(config=model.config)
    for cache in (static, dynamic):
        logits = model(batch, attention_mask=mask[:, :9], past_key_values=cache).logits
    for end in range(10, 16):
        token, position_ids = logits[:, -1:].argmax(-1), mask[:, :end].cumsum(1)[:, -1:] - 1
        logits = model(token, attention_mask=mask[:, :end], past_key_values=dynamic).logits
        with torch.compiler.set_stance("default" if end == 10 else "fail_on_recompile"):
            step = compiled(token, attention_mask=mask, position_ids=position_ids, past_key_values=static)
        assert_close(step.logits, logits, bounds.EXPORTED)
