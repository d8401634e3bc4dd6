"""Caches: generated tokens do not depend on them, with padding, batches and beams, and appending copies no other token."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import Cache, DynamicLayer

from megatape.accounting.kv_cache import cache_bytes
from megatape.hf.modeling.cache import GrowingLayer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.exports import ENCODINGS, HELD, SHAPES, Exported, random_tokens
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE

pytestmark = pytest.mark.numerics


NUM_NEW = 24
PADDED = [(shape, encoding) for shape, encoding in ENCODINGS if shape in ("grouped", "log")]
MODELS = [(shape, "tape") for shape in SHAPES if shape != "grouped"] + ENCODINGS
QUICK_MODELS = [model for model in MODELS if model[0] == "grouped"]


def generate(model: PreTrainedModel, tokens: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    """Return the NUM_NEW tokens that follow each row, [B, NUM_NEW]. No row ends early."""
    if mask is None:
        mask = torch.ones_like(tokens)
    output = model.generate(tokens, attention_mask=mask, max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, **options)
    return output[:, tokens.shape[1] :]


def generate_alone(model: PreTrainedModel, rows: list[Tensor], **options: Any) -> Tensor:
    """Return the tokens that follow each row in a batch of its own, [number of rows, NUM_NEW]."""
    return torch.cat([generate(model, row[None], **options) for row in rows])


@torch.no_grad()
def generate_in_training(export: Exported, tokens: Tensor, positions: Tensor) -> Tensor:
    """Return the tokens that `generate` would find with training's model, which reads the whole text each time."""
    continued = tokens
    for _ in range(NUM_NEW):
        logits = export.ours(continued, positions[None, : continued.shape[1]])[:, -1]
        logits[:, 2] = -torch.inf  # `generate` must not end either
        continued = torch.cat([continued, logits.argmax(-1, keepdim=True)], dim=1)
    return continued[:, tokens.shape[1] :]


def random_prompts(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator) for length in lengths]


def pad_left(rows: list[Tensor], value: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows padded on the left with `value`, and their mask."""
    width = max(len(row) for row in rows)
    tokens = []
    mask = []
    for row in rows:
        num_padding = width - len(row)
        tokens.append(torch.cat([torch.full((num_padding,), value), row]))
        mask.append(torch.cat([torch.zeros(num_padding), torch.ones(len(row))]).long())
    return torch.stack(tokens), torch.stack(mask)


def cached_bytes(export: Exported, length: int) -> int:
    with torch.no_grad():
        cache = export.load()(random_tokens(1, length), use_cache=True).past_key_values
    total = 0
    for layer in cache.layers:
        total += layer.keys.nbytes + layer.values.nbytes
        total += sum(feature.nbytes for feature in getattr(layer, "features", ()))
    return total


@pytest.mark.parametrize("shape", ["grouped", "interleaved"])
@pytest.mark.parametrize(
    "encoding", ["rope", "tape", "tape_vector", "alibi", "pope", "fox", "path_fox", "tape_fox", "tape_selective_rope"]
)
def test_bytes_per_token_are_those_of_the_accounting(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    export = exported(shape, encoding)
    assert cached_bytes(export, 10) - cached_bytes(export, 9) == cache_bytes(export.ours.config, 4)


@pytest.mark.parametrize("attention", slow_but(["sdpa"], ["sdpa", "eager"]))
@pytest.mark.parametrize(("shape", "encoding"), slow_but(QUICK_MODELS, MODELS))
def test_greedy_with_and_without_cache(exported: Callable[..., Exported], shape: str, encoding: str, attention: str) -> None:
    model = exported(shape, encoding).load(attn_implementation=attention)
    tokens = torch.stack(random_prompts(9, 9))
    # Random weights like to repeat one token, which would prove little.
    varied: dict[str, Any] = {"no_repeat_ngram_size": 1}
    expected = generate(model, tokens, use_cache=False, **varied)

    assert torch.equal(generate(model, tokens, **varied), expected)
    varied["cache_implementation"] = "static"
    if encoding in HELD:
        with pytest.raises(ValueError, match="StaticLayer cannot store: use transformers' DynamicCache"):
            generate(model, tokens, **varied)
    else:
        assert torch.equal(generate(model, tokens, **varied), expected)
        assert torch.equal(generate(model, tokens, **varied, prefill_chunk_size=4), expected)


def test_no_cache_follows_training(exported: Callable[..., Exported]) -> None:
    export = exported("grouped")
    tokens = random_prompts(9)[0][None]
    expected = generate_in_training(export, tokens, torch.arange(9 + NUM_NEW))
    assert torch.equal(generate(export.load(), tokens), expected)


@pytest.mark.parametrize(
    "options",
    [{}, {"use_cache": False}, {"cache_implementation": "static"}],
    ids=["dynamic cache", "no cache", "static cache"],
)
def test_randpe_spreads_prompt_and_continuation(exported: Callable[..., Exported], options: dict[str, Any]) -> None:
    """Positions spread over the run's 64, or as many as a longer text will have, in any batch."""
    export = exported("grouped", "randpe")
    rows = random_prompts(9, 60)
    draws = export.ours.encoding.positions(random_offset=False)
    expected = []
    for row in rows:
        positions = draws.evaluation(max(64, len(row) + NUM_NEW), 1234)
        expected.append(generate_in_training(export, row[None], torch.from_numpy(positions)))
    assert torch.equal(generate(export.load(), *pad_left(rows), **options), torch.cat(expected))


def test_randpe_refuses_texts_beyond_its_positions(exported: Callable[..., Exported]) -> None:
    model = exported("grouped", "randpe").load()
    with pytest.raises(ValueError, match="a text of 129 tokens, with those to come"):
        generate(model, random_prompts(129 - NUM_NEW)[0][None])


@pytest.mark.parametrize(("shape", "encoding"), PADDED)
def test_every_encoding_with_left_padding(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """A batch of different prompts with a cache continues as each prompt alone without one."""
    model = exported(shape, encoding).load()
    rows = random_prompts(4, 11, 7)
    expected = generate_alone(model, rows, use_cache=False)
    assert torch.equal(generate(model, *pad_left(rows)), expected)


@pytest.mark.parametrize(("shape", "encoding"), PADDED)
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


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"cache_implementation": "static"}, {"num_beams": 3}])
def test_left_padding(exported: Callable[..., Exported], options: dict[str, Any], attention: str) -> None:
    model = exported("grouped").load(attn_implementation=attention)
    rows = random_prompts(4, 11, 7)
    expected = generate_alone(model, rows, **options)
    assert torch.equal(generate(model, *pad_left(rows), **options), expected)


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


@pytest.mark.parametrize("shape", ["grouped", "odd"])
def test_beams_with_and_without_cache(exported: Callable[..., Exported], shape: str) -> None:
    model = exported(shape).load()
    tokens = torch.stack(random_prompts(6, 6))
    expected = generate(model, tokens, num_beams=4, use_cache=False)
    assert torch.equal(generate(model, tokens, num_beams=4), expected)
    assert torch.equal(generate(model, tokens, num_beams=4, cache_implementation="static"), expected)
    assert not torch.equal(generate(model, tokens), expected)


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
        first_token = max(begin, num_padding)  # of the padded row
        if first_token < end:
            assert_close(logits[0, first_token - begin :], expected[0, first_token:end], bounds.EXPORTED)
        assert_close(logits[1], expected[1, begin:end], bounds.EXPORTED)


def test_cache_holds_rotated_keys_and_both_values(exported: Callable[..., Exported]) -> None:
    model = exported("grouped").load()
    with torch.no_grad():
        cache = model(torch.stack(random_prompts(5, 5))).past_key_values
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 2, 5, 8)] * 3
    assert [layer.values.shape[-1] for layer in cache.layers] == [16, 16, 8]  # nothing reads e after the last layer


def test_prompt_embeddings_instead_of_tokens(exported: Callable[..., Exported]) -> None:
    model = exported("plain").load()
    tokens = random_prompts(9)[0][None]
    generated = model.generate(
        inputs_embeds=model.get_input_embeddings()(tokens),
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=NUM_NEW,
        min_new_tokens=NUM_NEW,
    )
    assert torch.equal(generated, generate(model, tokens))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(attention_mask=torch.ones_like(tokens))


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
def test_a_growing_layer_equals_a_dynamic_one() -> None:
    for ours, theirs in zip(run_operations(GrowingLayer()), run_operations(DynamicLayer()), strict=True):
        assert torch.equal(ours, theirs)


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

    first_layer = cache.layers[0]  # inputs of later layers differ as well
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


@pytest.mark.parametrize("encoding", ["tape", "alibi", "randpe"])
def test_an_assistant_changes_no_token(exported: Callable[..., Exported], encoding: str) -> None:
    model = exported("grouped", encoding).load()
    assistant = exported("grouped", "rope").load()
    prompt = random_prompts(9)[0][None]
    assert torch.equal(generate(model, prompt, assistant_model=assistant), generate(model, prompt))


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
