"""TAPE with forget gates, and TAPE from Selective RoPE's angles, against their definition in float64, one query at a time."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.encodings.selective_rope import Phases
from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.small_models import random_model, tokens_and_positions

pytestmark = pytest.mark.numerics

COMBINATIONS = ("tape_fox", "tape_selective_rope")


def initial_state(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return e before the first layer: 1 rotated by Selective RoPE's phases of the embedded tokens.

    Args:
        weights: Weights by name.
        x: Embedded tokens, [N, 32].

    Returns:
        e as complex numbers, [N, 2, 4].
    """
    slices = x.chunk(2, dim=-1)
    u = torch.cat([part / part.norm(dim=-1, keepdim=True) for part in slices], dim=-1)
    z = u @ weights["state_start.turns.down"].T @ weights["state_start.turns.up"].T
    kernels = weights["state_start.phases.weight"]
    steps = torch.zeros_like(z)
    for i in range(len(x)):
        for back in range(min(i, 3) + 1):
            steps[i] = steps[i] + kernels[:, 3 - back] * z[i - back]
    phases = F.silu(steps).cumsum(0)
    frequencies = 500_000 ** (-torch.arange(4, dtype=x.dtype) / 4)
    angles = phases.unflatten(-1, (2, 4)) * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotary_state(x: Tensor) -> Tensor:
    """Return e before the first layer as rotary positions, [N, 2, 4]."""
    frequencies = 10_000 ** (-torch.arange(4, dtype=x.dtype) / 4)
    angles = torch.arange(len(x))[:, None, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).expand(-1, 2, -1)


def naive(model: Transformer, tokens: Tensor) -> Tensor:
    """Return logits [N, V] for a text [N], with 4 heads of size 8 in 2 groups. e is complex, with one number per plane."""
    weights: dict[str, Tensor] = dict(model.named_parameters())
    x = weights["embedding.weight"][tokens]
    gated = model.config.encoding == "tape_fox"
    if gated:
        e = rotary_state(x)
    else:
        e = initial_state(weights, x)
    for layer in range(model.config.num_layers):
        prefix = f"blocks.{layer}."
        layer_weights = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        h = normalized(x, layer_weights["attention_norm.weight"])
        attended, attended_state = naive_attention(layer_weights, h, e, gated)
        x = x + attended @ layer_weights["attention.output.weight"].T
        h = normalized(x, layer_weights["mlp_norm.weight"])
        active = F.silu(h @ layer_weights["mlp.gate.weight"].T) * (h @ layer_weights["mlp.up.weight"].T)
        m = active @ layer_weights["mlp.down.weight"].T
        e = naive_update(layer_weights, e, attended_state, m)
        x = x + m
    return normalized(x, weights["norm.weight"]) @ weights["head.weight"].T


def naive_attention(weights: dict[str, Tensor], h: Tensor, e: Tensor, gated: bool) -> tuple[Tensor, Tensor]:
    """Compute attention, one query at a time.

    Args:
        weights: Weights in the layer, by name.
        h: Normalized tokens, [N, 32].
        e: Position state, [N, 2, 4].
        gated: Whether forget gates add to the scores.

    Returns:
        A v [N, 32] and A e [N, 4, 4].
    """
    q = h @ weights["attention.query.weight"].T
    k = h @ weights["attention.key.weight"].T
    v = h @ weights["attention.value.weight"].T
    log_gates = torch.zeros(len(h), 4, dtype=h.dtype)
    if gated:
        gate = "attention.token_features.gate."
        log_gates = F.logsigmoid(F.linear(h, weights[f"{gate}weight"], weights[f"{gate}bias"]))
    attended = []
    attended_state = []
    for i, head in itertools.product(range(len(h)), range(4)):
        channel = head // 2
        visible = slice(0, i + 1)
        query_elements = slice(8 * head, 8 * head + 8)
        key_elements = slice(8 * channel, 8 * channel + 8)
        state = e[:, channel]
        query = planes(q[i, query_elements]) * state[i]
        keys = planes(k[visible, key_elements]) * state[visible]
        decay = torch.stack([log_gates[j + 1 : i + 1, head].sum() for j in range(i + 1)])
        scores = (query * keys.conj()).real.sum(-1) / 8**0.5 + decay
        probabilities = scores.softmax(0)
        attended.append(probabilities @ v[visible, key_elements])
        attended_state.append(probabilities.to(e.dtype) @ state[visible])
    return torch.stack(attended).unflatten(0, (-1, 4)).flatten(1), torch.stack(attended_state).unflatten(0, (-1, 4))


def naive_update(weights: dict[str, Tensor], e: Tensor, attended_state: Tensor, m: Tensor) -> Tensor:
    """Return e after a layer, from A e [N, 4, 4] and the MLP's output m [N, 32]."""
    gained = attended_state * weights["position.gain"][:, None]
    e = e + gained.unflatten(1, (2, 2)).sum(2)
    content = F.silu(m @ weights["position.content"].T)
    mixing = torch.einsum("li,ni,im->nlm", weights["position.down"], content, weights["position.up"])
    return e + mixing.to(e.dtype) @ e


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def planes(heads: Tensor) -> Tensor:
    """Return heads [..., 8] as complex numbers, one per plane, [..., 4]."""
    return torch.complex(heads[..., :4], heads[..., 4:])


@pytest.mark.parametrize("encoding", COMBINATIONS)
def test_logits_and_gradients_are_the_definition(encoding: str) -> None:
    model = random_model(encoding=encoding, num_kv_heads=2).double()
    tokens, positions = tokens_and_positions(batch=1, length=9)
    # Nothing reads the last layer's update.
    names = [name for name, _ in model.named_parameters() if not name.startswith("blocks.2.position")]
    weights = [model.get_parameter(name) for name in names]

    logits = model(tokens, positions)[0]
    gradients = torch.autograd.grad(logits.square().sum(), weights)

    expected_logits = naive(model, tokens[0])
    expected_gradients = torch.autograd.grad(expected_logits.square().sum(), weights)
    assert_close(logits, expected_logits, bounds.LOGITS)
    for name, gradient, expected in zip(names, gradients, expected_gradients, strict=True):
        assert_close(gradient, expected, bounds.PACKED_GRADIENTS, what=name)


def with_weights_of(model: Transformer, source: Transformer) -> Transformer:
    model.load_state_dict(source.state_dict(), strict=False)
    return model


def test_open_gates_are_tape() -> None:
    inputs = tokens_and_positions()
    tape = random_model()
    model = with_weights_of(random_model(encoding="tape_fox"), tape)
    assert relative_difference(model(*inputs), tape(*inputs)) > 1e-3
    for block in model.blocks:
        block.attention.token_features.gate.weight.data.zero_()
        block.attention.token_features.gate.bias.data.fill_(800.0)
    assert_close(model(*inputs), tape(*inputs), bounds.LOGITS)


def test_equal_steps_are_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tokens_and_positions()
    tape = random_model(rotary_base=500_000.0)
    model = with_weights_of(random_model(encoding="tape_selective_rope"), tape)
    assert relative_difference(model(*inputs), tape(*inputs)) > 1e-3

    def constant(self: Phases, features: tuple[Tensor], *arguments: Any) -> tuple[tuple[Tensor], tuple[()]]:
        return (torch.ones_like(features[0]).double().cumsum(1),), ()

    monkeypatch.setattr(Phases, "forward", constant)
    assert_close(model(*inputs), tape(*inputs), bounds.LOGITS)


def test_one_layer_without_gains_of_its_norm_is_selective_rope() -> None:
    """Normalizing slices makes the first layer's angles those computed from the embedded tokens."""
    inputs = tokens_and_positions()
    selective = random_model(encoding="selective_rope", num_layers=1)
    selective.blocks[0].attention_norm.weight.data.fill_(1.0)
    model = random_model(encoding="tape_selective_rope", num_layers=1)
    layer = "blocks.0.attention."
    shared = {}
    for name, weight in selective.state_dict().items():
        name = name.replace(f"{layer}token_features.", "state_start.turns.")
        name = name.replace(f"{layer}sequence_features.", "state_start.phases.")
        shared[name] = weight
    model.load_state_dict(shared, strict=False)
    assert_close(model(*inputs), selective(*inputs), bounds.LOGITS)
