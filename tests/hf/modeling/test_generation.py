"""Generated tokens do not depend on the cache, with padding, batches, beams and an assistant."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.checks.slow import slow_but
from tests.helpers.models.exports import ENCODINGS, HELD, SHAPES, Exported
from tests.helpers.models.generation import CACHED_MODELS, NUM_NEW, generate, generate_alone, pad_left, random_prompts

pytestmark = pytest.mark.numerics

MODELS = [(shape, "tape") for shape in SHAPES if shape != "grouped"] + ENCODINGS
QUICK_MODELS = [model for model in MODELS if model[0] == "grouped" or "mixture" in model[0]]


@torch.no_grad()
def generate_in_training(export: Exported, tokens: Tensor, positions: Tensor) -> Tensor:
    """Return the tokens that `generate` would find with training's model, which reads the whole text each time."""
    continued = tokens
    for _ in range(NUM_NEW):
        logits = export.ours(continued, positions[None, : continued.shape[1]])[:, -1]
        logits[:, 2] = -torch.inf  # `generate` must not end either
        continued = torch.cat([continued, logits.argmax(-1, keepdim=True)], dim=1)
    return continued[:, tokens.shape[1] :]


@pytest.mark.parametrize("attention", slow_but(["sdpa"], ["sdpa", "eager"]))
@pytest.mark.parametrize(("shape", "encoding"), slow_but(QUICK_MODELS, MODELS))
def test_greedy_with_and_without_cache(exported: Callable[..., Exported], shape: str, encoding: str, attention: str) -> None:
    model = exported(shape, encoding).load(attn_implementation=attention)
    tokens = torch.stack(random_prompts(9, 9))
    # Repeating one token, as random weights tend to, would prove little.
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


@pytest.mark.parametrize(("shape", "encoding"), CACHED_MODELS)
def test_every_encoding_with_left_padding(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """A batch of different prompts with a cache continues as each prompt alone without one."""
    model = exported(shape, encoding).load()
    rows = random_prompts(4, 11, 7)
    expected = generate_alone(model, rows, use_cache=False)
    assert torch.equal(generate(model, *pad_left(rows)), expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"cache_implementation": "static"}, {"num_beams": 3}])
def test_left_padding(exported: Callable[..., Exported], options: dict[str, Any], attention: str) -> None:
    model = exported("grouped").load(attn_implementation=attention)
    rows = random_prompts(4, 11, 7)
    expected = generate_alone(model, rows, **options)
    assert torch.equal(generate(model, *pad_left(rows), **options), expected)


@pytest.mark.parametrize("shape", ["grouped", "odd"])
def test_beams_with_and_without_cache(exported: Callable[..., Exported], shape: str) -> None:
    model = exported(shape).load()
    tokens = torch.stack(random_prompts(6, 6))
    expected = generate(model, tokens, num_beams=4, use_cache=False)
    assert torch.equal(generate(model, tokens, num_beams=4), expected)
    assert torch.equal(generate(model, tokens, num_beams=4, cache_implementation="static"), expected)
    assert not torch.equal(generate(model, tokens), expected)


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


@pytest.mark.parametrize(
    ("shape", "encoding"), [("grouped", "tape"), ("grouped", "alibi"), ("grouped", "randpe"), ("mixture_of_tape", "tape")]
)
def test_an_assistant_changes_no_token(exported: Callable[..., Exported], shape: str, encoding: str) -> None:
    """Layers with a window keep earlier tokens until the assistant's guesses are accepted."""
    model = exported(shape, encoding).load()
    assistant = exported("grouped", "rope").load()
    prompt = random_prompts(9)[0][None]
    assert torch.equal(generate(model, prompt, assistant_model=assistant), generate(model, prompt))
