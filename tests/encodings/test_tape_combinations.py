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


def first_state(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """e [N, 2, 4] as complex numbers: 1 rotated by Selective RoPE's phi of the embedded tokens x [N, 32]."""
    u = torch.cat([part / part.norm(dim=-1, keepdim=True) for part in x.chunk(2, dim=-1)], dim=-1)
    z = u @ weights["state_start.turns.down"].T @ weights["state_start.turns.up"].T
    kernels = weights["state_start.phases.weight"]
    phi = [torch.zeros(8, dtype=x.dtype)]
    for i in range(len(x)):
        step = torch.stack([kernels[:, 3 - back] * z[i - back] for back in range(min(i, 3) + 1)]).sum(0)
        phi.append(phi[-1] + step * torch.sigmoid(step))
    angles = torch.stack(phi[1:]).unflatten(-1, (2, 4)) * 500_000 ** (-torch.arange(4, dtype=x.dtype) / 4)
    return torch.polar(torch.ones_like(angles), angles)


def naive(model: Transformer, tokens: Tensor) -> Tensor:
    """Logits [N, V] of a text [N] by 4 heads of 8 in 2 groups. e is complex: a plane is one number."""
    weights: dict[str, Tensor] = dict(model.named_parameters())
    x = weights["embedding.weight"][tokens]
    angles = torch.arange(len(x))[:, None, None] * 10_000 ** (-torch.arange(4, dtype=x.dtype) / 4)
    gated = model.config.encoding == "tape_fox"
    e = torch.polar(torch.ones_like(angles), angles).expand(-1, 2, -1) if gated else first_state(weights, x)
    for layer in range(model.config.num_layers):
        of = {name.removeprefix(f"blocks.{layer}."): weight for name, weight in weights.items()}
        h = normalized(x, of["attention_norm.weight"])
        q, k, v = (h @ of[f"attention.{name}.weight"].T for name in ("query", "key", "value"))
        gates = torch.zeros(len(x), 4, dtype=x.dtype)
        if gated:
            part = "attention.token_features.gate."
            gates = F.logsigmoid(F.linear(h, of[f"{part}weight"], of[f"{part}bias"]))
        attended = []
        moved = []
        for i, head in itertools.product(range(len(x)), range(4)):
            seen = slice(0, i + 1)
            turns = e[:, head // 2]
            query = planes(q[i, 8 * head : 8 * head + 8]) * turns[i]
            keys = planes(k[seen, 8 * (head // 2) : 8 * (head // 2) + 8]) * turns[seen]
            forgotten = torch.stack([gates[j + 1 : i + 1, head].sum() for j in range(i + 1)])
            scores = (query * keys.conj()).real.sum(-1) / 8**0.5 + forgotten
            share = scores.softmax(0)
            attended.append(share @ v[seen, 8 * (head // 2) : 8 * (head // 2) + 8])
            moved.append(share.to(e.dtype) @ turns[seen])
        x = x + torch.stack(attended).unflatten(0, (-1, 4)).flatten(1) @ of["attention.output.weight"].T
        h = normalized(x, of["mlp_norm.weight"])
        m = (F.silu(h @ of["mlp.gate.weight"].T) * (h @ of["mlp.up.weight"].T)) @ of["mlp.down.weight"].T
        gained = torch.stack(moved).unflatten(0, (-1, 4)) * of["position.gain"][:, None]
        e = e + gained.unflatten(1, (2, 2)).sum(2)
        mixing = torch.einsum("li,ni,im->nlm", of["position.down"], F.silu(m @ of["position.content"].T), of["position.up"])
        e = e + mixing.to(e.dtype) @ e
        x = x + m
    return normalized(x, weights["norm.weight"]) @ weights["head.weight"].T


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def planes(heads: Tensor) -> Tensor:
    """[..., 8] -> [..., 4]."""
    return torch.complex(heads[..., :4], heads[..., 4:])


@pytest.mark.parametrize("encoding", COMBINATIONS)
def test_logits_and_gradients_are_the_definition(encoding: str) -> None:
    model = random_model(encoding=encoding, num_kv_heads=2).double()
    tokens, positions = tokens_and_positions(batch=1, length=9)
    found = model(tokens, positions)[0]
    expected = naive(model, tokens[0])
    assert_close(found, expected, bounds.LOGITS)
    names = [name for name, _ in model.named_parameters() if not name.startswith("blocks.2.position")]  # which nothing reads
    weights = [model.get_parameter(name) for name in names]
    gradients = (torch.autograd.grad(logits.square().sum(), weights) for logits in (found, expected))
    for name, ours, theirs in zip(names, *gradients, strict=True):
        assert_close(ours, theirs, bounds.PACKED_GRADIENTS, what=name)


def with_weights_of(model: Transformer, other: Transformer) -> Transformer:
    model.load_state_dict(other.state_dict(), strict=False)
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

    def constant(self: Phases, features: tuple[Tensor], *rest: Any) -> tuple[tuple[Tensor], tuple[()]]:
        return (torch.ones_like(features[0]).double().cumsum(1),), ()

    monkeypatch.setattr(Phases, "forward", constant)
    assert_close(model(*inputs), tape(*inputs), bounds.LOGITS)


def test_one_layer_without_gains_of_its_norm_is_selective_rope() -> None:
    """Its slices are divided by their norms, so the first layer's angles are those of the embedded tokens."""
    inputs = tokens_and_positions()
    selective = random_model(encoding="selective_rope", num_layers=1)
    selective.blocks[0].attention_norm.weight.data.fill_(1.0)
    model = random_model(encoding="tape_selective_rope", num_layers=1)
    layer = "blocks.0.attention."
    start = {f"{layer}token_features.": "state_start.turns.", f"{layer}sequence_features.": "state_start.phases."}
    shared = selective.state_dict()
    for ours, theirs in start.items():
        shared = {name.replace(ours, theirs): weight for name, weight in shared.items()}
    model.load_state_dict(shared, strict=False)
    assert_close(model(*inputs), selective(*inputs), bounds.LOGITS)
