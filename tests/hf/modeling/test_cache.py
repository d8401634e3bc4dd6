"""Logits do not depend on caching, caches hold what the accounting says, and appending copies no other token."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache

from megatape.accounting.whole_model.kv_cache import cache_bytes
from megatape.hf.modeling.cache_layers import GrowingLayer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.exports import ENCODINGS, HELD, Exported, random_tokens
from tests.helpers.models.generation import CACHED_MODELS, pad_left, random_prompts

pytestmark = pytest.mark.numerics

BYTES = [
    (shape, encoding)
    for shape in ("grouped", "interleaved")
    for encoding in ("rope", "tape", "tape_vector", "alibi", "pope", "fox", "path_fox", "tape_fox", "tape_selective_rope")
]


def cached_bytes(export: Exported, length: int) -> int:
    with torch.no_grad():
        cache = export.load()(random_tokens(1, length), use_cache=True).past_key_values
    total = 0
    for layer in cache.layers:
        total += layer.keys.nbytes + layer.values.nbytes
        total += sum(feature.nbytes for feature in getattr(layer, "features", ()))
    return total


@pytest.mark.parametrize(("shape", "encoding"), BYTES + [model for model in ENCODINGS if "mixture" in model[0]])
def test_bytes_per_token_are_those_of_the_accounting(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    export = exported(shape, encoding)
    for length in (9, 10):
        assert cached_bytes(export, length) == cache_bytes(export.ours.config, 4, length)


@pytest.mark.parametrize(("shape", "encoding"), CACHED_MODELS)
@torch.no_grad()
def test_every_encoding_in_pieces(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """A text fed in pieces has the logits of the whole, with a dynamic and, if supported, a static cache."""
    model = exported(shape, encoding).load()
    tokens = torch.stack(random_prompts(20, 20))
    expected = model(tokens).logits
    caches: list[Cache] = [DynamicCache(config=model.config)]
    if encoding not in HELD:
        caches.append(StaticCache(config=model.config, max_cache_len=32))
    for cache in caches:
        for begin, end in itertools.pairwise((0, 5, 6, 14, 20)):
            logits = model(tokens[:, begin:end], past_key_values=cache).logits
            assert_close(logits, expected[:, begin:end], bounds.EXPORTED)


@torch.no_grad()
def test_padding_tokens_are_never_looked_at(exported: Callable[..., Exported]) -> None:
    model = exported("plain").load()
    rows = random_prompts(4, 11)
    tokens, mask = pad_left(rows, 0)
    other_tokens, _ = pad_left(rows, 17)
    short_row = slice(-4, None)

    def logits(tokens: Tensor, mask: Tensor | None) -> Tensor:
        result: Tensor = model(tokens, mask).logits
        return result[0, short_row]

    assert torch.equal(logits(tokens, mask), logits(other_tokens, mask))
    unmasked_difference = relative_difference(logits(tokens, None), logits(other_tokens, None))
    assert unmasked_difference > 100 * bounds.EXPORTED.limit


@torch.no_grad()
@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "not masked"])
def test_cached_logits_token_by_token(exported: Callable[..., Exported], masked: bool, static: bool, first: int) -> None:
    """Without `generate`, positions follow from the mask or the cache, for any pieces of a text."""
    model = exported("grouped").load()
    num_padding = 8
    tokens, mask = pad_left(random_prompts(20 - num_padding, 20))

    def mask_until(end: int) -> Tensor | None:
        if masked:
            return mask[:, :end]
        return None

    expected = model(tokens, attention_mask=mask_until(20)).logits
    cache: Cache = DynamicCache(config=model.config)
    if static:
        cache = StaticCache(config=model.config, max_cache_len=32)
    for begin, end in itertools.pairwise((0, first, 6, 14, 15, 20)):
        logits = model(tokens[:, begin:end], attention_mask=mask_until(end), past_key_values=cache).logits
        # First real token in the padded row.
        first_token = max(begin, num_padding)
        if first_token < end:
            assert_close(logits[0, first_token - begin :], expected[0, first_token:end], bounds.EXPORTED)
        assert_close(logits[1], expected[1, begin:end], bounds.EXPORTED)


def test_cache_holds_rotated_keys_and_both_values(exported: Callable[..., Exported]) -> None:
    model = exported("grouped").load()
    with torch.no_grad():
        cache = model(torch.stack(random_prompts(5, 5))).past_key_values
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 2, 5, 8)] * 3
    assert [layer.values.shape[-1] for layer in cache.layers] == [16, 16, 8]  # nothing reads e after the last layer


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_at_every_length_around_the_windows(exported: Callable[..., Exported], attention: str) -> None:
    """A text of any length, continued token by token, has the logits of the whole."""
    model = exported("mixture_of_tape", "tape").load(attn_implementation=attention)
    tokens = torch.stack(random_prompts(12, 12))
    expected = model(tokens).logits
    for length in range(1, 12):
        cache = model(tokens[:, :length], use_cache=True).past_key_values
        for token in range(length, 12):
            logits = model(tokens[:, token : token + 1], past_key_values=cache).logits
            assert_close(logits[:, 0], expected[:, token], bounds.EXPORTED, what=(length, token))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["made by generate", "empty", "of a config"])
def test_appending_copies_only_the_new_token(exported: Callable[..., Exported], kind: str) -> None:
    model = exported("grouped").load()
    batch = random_tokens(2, 9)
    caches = {"made by generate": None, "empty": DynamicCache(), "of a config": DynamicCache(config=model.config)}
    cache = model(batch, past_key_values=caches[kind]).past_key_values
    addresses = []
    for _ in range(4):
        model(batch[:, :1], past_key_values=cache)
        addresses.append([(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers])
    assert addresses == addresses[:1] * 4


@torch.no_grad()
def test_static_caches_stay_static(exported: Callable[..., Exported]) -> None:
    model = exported("grouped").load()
    static = StaticCache(config=model.config, max_cache_len=12)
    cache = model(random_tokens(2, 9), past_key_values=static).past_key_values
    assert not any(isinstance(layer, GrowingLayer) for layer in cache.layers)


@torch.no_grad()
def test_rewritten_keys_are_not_rounded(exported: Callable[..., Exported]) -> None:
    """Keys stay in float32: bfloat16 would lose small reflections at each of 400 tokens."""
    model = exported("grouped", "path").load(dtype=torch.bfloat16, attn_implementation="eager")
    for layer in model.model.layers:
        layer.self_attn.token_features.strength.bias.fill_(-5.0)
    tokens = random_tokens(1, 400)

    expected = model(tokens, use_cache=True).past_key_values.layers[0]
    cache = DynamicCache(config=model.config)
    for token in tokens.split(1, dim=1):
        model(token, past_key_values=cache)

    first_layer = cache.layers[0]  # Later layers' inputs differ as well.
    assert first_layer.keys.dtype == torch.float32
    assert_close(first_layer.keys, expected.keys, bounds.REWRITTEN_KEYS)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["tape", "fox", "selective_rope", "path"])
def test_repeated_rows_keep_all_their_features(exported: Callable[..., Exported], encoding: str) -> None:
    model = exported("grouped", encoding).load()
    tokens = random_tokens(1, 12)
    expected = model(tokens).logits[:, 10:].expand(2, -1, -1)
    cache = model(tokens[:, :10], use_cache=True).past_key_values
    cache.batch_repeat_interleave(2)
    logits = model(tokens[:, 10:].expand(2, -1), past_key_values=cache).logits
    assert_close(logits, expected, bounds.EXPORTED)


def test_gradients_pass_through_the_cache(exported: Callable[..., Exported]) -> None:
    """With gradients, the cache must not be written in place: the backward pass may need its tensors."""
    model = exported("plain").load()
    batch = random_tokens(1, 9)

    def key_gradient(*pieces: Tensor) -> Tensor:
        model.zero_grad()
        cache = DynamicCache(config=model.config)
        logits = torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1)
        logits.square().sum().backward()
        gradient: Tensor = model.model.layers[0].self_attn.k_proj.weight.grad
        return gradient.clone()

    expected = key_gradient(batch)
    assert_close(key_gradient(batch[:, :4], batch[:, 4:7], batch[:, 7:]), expected, bounds.PACKED_GRADIENTS)


def test_a_cache_of_inference_mode_can_be_used_outside(exported: Callable[..., Exported]) -> None:
    model = exported("grouped").load()
    batch = random_tokens(1, 9)
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
    """Decoding compiles once, without a graph break, for a padded and an unpadded text.

    Inductor would only test its own code on our graph, and take five times as long.
    """
    model = exported("grouped").load()
    batch = random_tokens(2, 9)
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, :3] = 0
    torch.compiler.reset()
    compiled = torch.compile(model.forward, backend="aot_eager", fullgraph=True, dynamic=False)
    static = StaticCache(config=model.config, max_cache_len=16)
    dynamic = DynamicCache(config=model.config)
    for cache in (static, dynamic):
        logits = model(batch, attention_mask=mask[:, :9], past_key_values=cache).logits
    for end in range(10, 16):
        token = logits[:, -1:].argmax(-1)
        position_ids = mask[:, :end].cumsum(1)[:, -1:] - 1
        logits = model(token, attention_mask=mask[:, :end], past_key_values=dynamic).logits
        stance = "fail_on_recompile"
        if end == 10:
            stance = "default"
        with torch.compiler.set_stance(stance):
            step = compiled(token, attention_mask=mask, position_ids=position_ids, past_key_values=static)
        assert_close(step.logits, logits, bounds.EXPORTED)
