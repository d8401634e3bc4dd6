"""Caches: they change no token, whatever the padding, batches and beams; appending a token copies no other."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import DynamicLayer

from megatape.accounting.kv_cache import cache_bytes
from megatape.hf.modeling.cache import GrowingLayer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.checks.slow import slow_but
from tests.helpers.models.exports import ENCODINGS, HELD, SHAPES, Exported, random_tokens
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE

pytestmark = pytest.mark.numerics


NEW = 24
PADDED = [(shape, encoding) for shape, encoding in ENCODINGS if shape in ("grouped", "log")]
MODELS = [(shape, "tape") for shape in SHAPES if shape != "grouped"] + ENCODINGS


@pytest.mark.parametrize("shape", ["grouped", "interleaved"])
@pytest.mark.parametrize(
    "encoding", ["rope", "tape", "tape_vector", "alibi", "pope", "fox", "path_fox", "tape_fox", "tape_selective_rope"]
)
def test_bytes_of_a_token(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """What one more token adds to a cache is what the accounting says."""
    found = exported(shape, encoding)
    sizes = []
    for length in (9, 10):
        with torch.no_grad():
            cache = found.load()(random_tokens(1, length), use_cache=True).past_key_values
        held = [part for layer in cache.layers for part in (layer.keys, layer.values, *getattr(layer, "features", ()))]
        sizes.append(sum(part.nbytes for part in held))
    assert sizes[1] - sizes[0] == cache_bytes(found.ours.config, 4)


def generate(model: PreTrainedModel, tokens: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    """The NEW tokens that follow each row, [B, NEW]; no row ends early."""
    mask = torch.ones_like(tokens) if mask is None else mask
    output = model.generate(tokens, attention_mask=mask, max_new_tokens=NEW, min_new_tokens=NEW, **options)
    return output[:, tokens.shape[1] :]


def prompts(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator) for length in lengths]


def padded(rows: list[Tensor], value: int = 0) -> tuple[Tensor, Tensor]:
    """Rows padded on the left with `value`, and their mask."""
    width = max(len(row) for row in rows)
    tokens = [torch.cat([torch.full((width - len(row),), value), row]) for row in rows]
    mask = [torch.cat([torch.zeros(width - len(row)), torch.ones(len(row))]).long() for row in rows]
    return torch.stack(tokens), torch.stack(mask)


@pytest.mark.parametrize("attention", slow_but(["sdpa"], ["sdpa", "eager"]))
@pytest.mark.parametrize(("shape", "encoding"), slow_but([model for model in MODELS if model[0] == "grouped"], MODELS))
def test_greedy_with_and_without_cache(exported: Callable[..., Exported], shape: str, encoding: str, attention: str) -> None:
    model = exported(shape, encoding).load(attn_implementation=attention)
    tokens = torch.stack(prompts(9, 9))
    varied: dict[str, Any] = {"no_repeat_ngram_size": 1}  # random weights like to repeat one token, which would prove little
    expected = generate(model, tokens, use_cache=False, **varied)
    assert torch.equal(generate(model, tokens, **varied), expected)
    if encoding in HELD:
        with pytest.raises(ValueError, match="StaticLayer cannot store: use transformers' DynamicCache"):
            generate(model, tokens, cache_implementation="static", **varied)
    else:
        varied["cache_implementation"] = "static"
        assert torch.equal(generate(model, tokens, **varied), expected)
        assert torch.equal(generate(model, tokens, **varied, prefill_chunk_size=4), expected)


def test_no_cache_follows_training(exported: Callable[..., Exported]) -> None:
    found = exported("grouped")
    tokens = prompts(9)[0][None]
    assert torch.equal(generate(found.load(), tokens), followed(found, tokens, torch.arange(9 + NEW)))


def test_randpe_spreads_prompt_and_continuation(exported: Callable[..., Exported]) -> None:
    """Over the run's 64 positions, or as many as a longer text will have, whatever batch it is in."""
    found = exported("grouped", "randpe")
    model = found.load()
    rows = prompts(9, 60)
    draws = found.ours.encoding.positions(random_offset=False)
    expected = [followed(found, row[None], torch.from_numpy(draws.evaluation(max(64, len(row) + NEW), 1234))) for row in rows]
    for options in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        assert torch.equal(generate(model, *padded(rows), **options), torch.cat(expected))
    with pytest.raises(ValueError, match="a text of 129 tokens, with those to come"):
        generate(model, prompts(129 - NEW)[0][None])


@torch.no_grad()
def followed(found: Exported, tokens: Tensor, positions: Tensor) -> Tensor:
    """What `generate` gives with training's model, from the whole text each time."""
    continued = tokens
    for _ in range(NEW):
        logits = found.ours(continued, positions[None, : continued.shape[1]])[:, -1]
        logits[:, 2] = -torch.inf  # `generate` is told not to end
        continued = torch.cat([continued, logits.argmax(-1, keepdim=True)], dim=1)
    return continued[:, tokens.shape[1] :]


@pytest.mark.parametrize(("shape", "encoding"), PADDED)
def test_every_encoding_with_left_padding(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """A batch of different prompts through the cache gives what each gives alone without one."""
    model = exported(shape, encoding).load()
    rows = prompts(4, 11, 7)
    alone = torch.cat([generate(model, row[None], use_cache=False) for row in rows])
    assert torch.equal(generate(model, *padded(rows)), alone)


@pytest.mark.parametrize(("shape", "encoding"), PADDED)
def test_every_encoding_in_pieces(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """Logits of a text fed in pieces through a dynamic or, if it can be, a static cache are those of the whole."""
    model = exported(shape, encoding).load()
    tokens = torch.stack(prompts(20, 20))
    with torch.no_grad():
        expected = model(tokens).logits
        static = [] if encoding in HELD else [StaticCache(config=model.config, max_cache_len=32)]
        for cache in (DynamicCache(config=model.config), *static):
            for begin, end in itertools.pairwise((0, 5, 6, 14, 20)):
                part = model(tokens[:, begin:end], past_key_values=cache).logits
                assert_close(part, expected[:, begin:end], bounds.EXPORTED)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"cache_implementation": "static"}, {"num_beams": 3}])
def test_left_padding(exported: Callable[..., Exported], options: dict[str, Any], attention: str) -> None:
    model = exported("grouped").load(attn_implementation=attention)
    rows = prompts(4, 11, 7)
    alone = torch.cat([generate(model, row[None], **options) for row in rows])
    assert torch.equal(generate(model, *padded(rows), **options), alone)


def test_padding_tokens_are_never_looked_at(exported: Callable[..., Exported]) -> None:
    model = exported("plain").load()
    rows = prompts(4, 11)
    with torch.no_grad():
        logits = [model(*padded(rows, value)).logits[0, -4:] for value in (0, 17)]
        unmasked = [model(padded(rows, value)[0]).logits[0, -4:] for value in (0, 17)]
    assert torch.equal(*logits)
    assert relative_difference(*unmasked) > 100 * bounds.EXPORTED.limit


@pytest.mark.parametrize("shape", ["grouped", "odd"])
def test_beams_with_and_without_cache(exported: Callable[..., Exported], shape: str) -> None:
    model = exported(shape).load()
    tokens = torch.stack(prompts(6, 6))
    expected = generate(model, tokens, num_beams=4, use_cache=False)
    assert torch.equal(generate(model, tokens, num_beams=4), expected)
    assert torch.equal(generate(model, tokens, num_beams=4, cache_implementation="static"), expected)
    assert not torch.equal(generate(model, tokens), expected)


@torch.no_grad()
@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.parametrize("static", [False, True])
def test_cached_logits_token_by_token(exported: Callable[..., Exported], static: bool, first: int) -> None:
    """Positions are counted right without `generate`, from the mask or the cache, whatever pieces a text comes in."""
    model = exported("grouped").load()
    tokens, mask = padded(prompts(12, 20))
    for given in (mask, None):
        expected = model(tokens, attention_mask=given).logits
        cache = StaticCache(config=model.config, max_cache_len=32) if static else DynamicCache(config=model.config)
        begin = 0
        for end in (first, 6, 14, 15, 20):
            seen = None if given is None else given[:, :end]
            part = model(tokens[:, begin:end], attention_mask=seen, past_key_values=cache).logits
            real = slice(max(begin, 8), end)  # of the first row, whose 8 first tokens are padding
            if real.start < end:
                assert_close(part[0, real.start - begin :], expected[0, real], bounds.EXPORTED)
            assert_close(part[1], expected[1, begin:end], bounds.EXPORTED)
            begin = end


def test_cache_holds_rotated_keys_and_both_values(exported: Callable[..., Exported]) -> None:
    model = exported("grouped").load()
    with torch.no_grad():
        cache = model(torch.stack(prompts(5, 5))).past_key_values
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 2, 5, 8)] * 3
    assert [layer.values.shape[-1] for layer in cache.layers] == [16, 16, 8]  # nothing reads e after the last layer


def test_prompt_embeddings_instead_of_tokens(exported: Callable[..., Exported]) -> None:
    model = exported("plain").load()
    tokens = prompts(9)[0][None]
    embedded = model.generate(
        inputs_embeds=model.get_input_embeddings()(tokens),
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=NEW,
        min_new_tokens=NEW,
    )
    assert torch.equal(embedded, generate(model, tokens))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(attention_mask=torch.ones_like(tokens))


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
    model = exported("grouped").load()
    batch = random_tokens(2, 9)
    for cache in (None, DynamicCache(), DynamicCache(config=model.config)):
        cache = model(batch, past_key_values=cache).past_key_values
        places = []
        for _ in range(4):
            model(batch[:, :1], past_key_values=cache)
            places.append([part.data_ptr() for layer in cache.layers for part in (layer.keys, layer.values)])
        assert places[1:] == places[:-1]
    static = StaticCache(config=model.config, max_cache_len=12)
    assert not any(isinstance(layer, GrowingLayer) for layer in model(batch, past_key_values=static).past_key_values.layers)


def test_keys_that_are_rewritten_are_not_rounded(exported: Callable[..., Exported]) -> None:
    """They stay in float32: small reflections would be lost in bfloat16 at every one of 400 tokens."""
    model = exported("grouped", "path").load(dtype=torch.bfloat16, attn_implementation="eager")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.token_features.strength.bias.fill_(-5.0)
        tokens = random_tokens(1, 400)
        whole = model(tokens, use_cache=True).past_key_values.layers
        cache = DynamicCache(config=model.config)
        for token in tokens.split(1, dim=1):
            model(token, past_key_values=cache)
    # later layers also differ by what they are given
    one = cache.layers[0]
    other = whole[0]
    assert one.keys.dtype == torch.float32
    assert_close(one.keys, other.keys, bounds.REWRITTEN_KEYS)


@pytest.mark.parametrize("encoding", ["tape", "fox", "selective_rope", "path"])
def test_rows_repeat_with_all_that_they_hold(exported: Callable[..., Exported], encoding: str) -> None:
    model = exported("grouped", encoding).load()
    tokens = random_tokens(1, 12)
    with torch.no_grad():
        cache = model(tokens[:, :10], use_cache=True).past_key_values
        cache.batch_repeat_interleave(2)
        found = model(tokens[:, 10:].expand(2, -1), past_key_values=cache).logits
        assert_close(found, model(tokens).logits[:, 10:].expand(2, -1, -1), bounds.EXPORTED)


@pytest.mark.parametrize("encoding", ["tape", "alibi", "randpe"])
def test_an_assistant_changes_no_token(exported: Callable[..., Exported], encoding: str) -> None:
    found = exported("grouped", encoding)
    model = found.load()
    assistant = exported("grouped", "rope").load()
    (prompt,) = prompts(9)
    assert torch.equal(generate(model, prompt[None], assistant_model=assistant), generate(model, prompt[None]))


def test_gradients_pass_through_the_cache(exported: Callable[..., Exported]) -> None:
    """With gradients nothing is written into what the backward pass may need."""
    model = exported("plain").load()
    batch = random_tokens(1, 9)
    gradients = []
    for pieces in (batch,), (batch[:, :4], batch[:, 4:7], batch[:, 7:]):
        model.zero_grad()
        cache = DynamicCache(config=model.config)
        logits = torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1)
        logits.square().sum().backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad.clone())
    assert_close(gradients[1], gradients[0], bounds.PACKED_GRADIENTS)


def test_a_cache_of_inference_mode_goes_on_outside_of_it(exported: Callable[..., Exported]) -> None:
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
    """Without a graph break, and without compiling again for the next token; one text is padded, the other is not.

    The code that Inductor would make of the graph is not ours: without it this takes a fifth of the time."""
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
        with torch.compiler.set_stance("default" if end == 10 else "fail_on_recompile"):
            step = compiled(token, attention_mask=mask, position_ids=position_ids, past_key_values=static)
        assert_close(step.logits, logits, bounds.EXPORTED)
