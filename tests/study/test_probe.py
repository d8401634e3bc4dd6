"""The probe recomputes what the model computed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatape.model.attention import Attention
from megatape.registry import ENCODINGS
from megatape.study.probe import dot_products, probabilities, run
from tests.helpers import bounds
from tests.helpers.bounds import assert_close
from tests.helpers.models import random_model, tokens_and_positions

pytestmark = pytest.mark.numerics


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_probabilities_are_those_of_the_model(encoding: str) -> None:
    """With grouped queries, biases and norms: rows sum to 1, and values weighted by them give attention's output in every
    layer."""
    model = random_model(encoding=encoding, num_kv_heads=2, attention_bias="qkv", qk_norm=True)
    returned: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor | None]) -> None:
        returned.append(outputs[0])

    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    for attention in attentions:
        attention.register_forward_hook(keep)
    tokens, positions = tokens_and_positions()
    logits, layers = run(model, tokens, positions)
    assert torch.equal(logits, model(tokens, positions))
    assert [layer.attention for layer in layers] == attentions
    for layer, expected in zip(layers, returned, strict=False):
        weights = probabilities(layer)
        assert weights.shape == (2, 4, 40, 40) and not weights.triu(1).any()
        assert_close(weights.sum(-1), torch.ones(2, 4, 40), bounds.PROBABILITIES)
        values = layer.attention.value(layer.h).unflatten(-1, (2, 8)).transpose(1, 2).repeat_interleave(2, 1)
        ours = layer.attention.output((weights @ values).transpose(1, 2).flatten(2))
        assert_close(ours, expected, bounds.LOGITS)


@pytest.mark.parametrize("encoding", ["rope", "tape", "tape_vector"])
def test_dot_products_of_rotary_positions(encoding: str) -> None:
    """At the first layer they are the mean over planes of cos((n - m) theta), whatever the state's width."""
    _, layers = run(random_model(encoding=encoding), *tokens_and_positions(offset=11))
    thetas = 1e4 ** (-torch.arange(0, 8, 2) / 8)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    expected = (distance[..., None] * thetas).cos().mean(-1)
    found = dot_products(layers[0])
    assert found is not None and found.shape == (2, 1 if encoding == "rope" else 4, 40, 40)  # rope: all channels are equal
    assert_close(found, expected.expand_as(found), bounds.LOGITS)


def test_no_dot_products_without_position_tensors() -> None:
    for encoding in ("nope", "alibi", "fire", "xpos", "sinusoidal", "t5"):
        _, layers = run(random_model(encoding=encoding), *tokens_and_positions())
        assert dot_products(layers[0]) is None, encoding


def test_nothing_stays_in_the_model() -> None:
    model = random_model()
    run(model, *tokens_and_positions())
    assert not any(module._forward_pre_hooks for module in model.modules())
