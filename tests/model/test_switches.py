"""Layers without positions, partly rotated heads, and scores that grow with the number of keys.

A layer without positions neither reads nor changes the position state.
"""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.config import ModelConfig
from megatape.model.build import build_model
from megatape.model.recorded_streams import recorded_streams
from megatape.model.transformer import Transformer
from megatape.nn.parameters import spec_of
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.small_models import SHAPE, random_model, tokens_and_positions

pytestmark = pytest.mark.numerics

ENCODINGS = (
    "tape",
    "tape_fox",
    "tape_selective_rope",
    "rope",
    "t5",
    "fire",
    "fox",
    "pope",
    "cope",
    "path_fox",
    "selective_rope",
)


def naive(model: Transformer, tokens: Tensor) -> Tensor:
    """Compute logits [N, V] of a text [N] with rotary positions, one pair of tokens and one plane at a time."""
    every = model.config.nope_every
    rotated = round(8 * model.config.rotary_fraction)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    x = weights["embedding.weight"][tokens]
    for layer in range(model.config.num_layers):
        of = {name.removeprefix(f"blocks.{layer}."): weight for name, weight in weights.items()}
        h = norm(x, of["attention_norm.weight"])
        q, k, v = (h @ of[f"attention.{name}.weight"].T for name in ("query", "key", "value"))
        attended = torch.zeros_like(q)
        for head, i in itertools.product(range(4), range(len(tokens))):
            own = slice(8 * head, 8 * head + 8)
            turns = torch.zeros(i + 1) if every and (layer + 1) % every == 0 else i - torch.arange(i + 1)
            scores = torch.stack([score(q[i, own], k[j, own], float(turns[j]), rotated) for j in range(i + 1)])
            if model.config.attention_scale == "log_n":
                scores = scores * of["attention.log_scale.scale"][head] * math.log(i + 1)
            attended[i, own] = scores.softmax(0) @ v[: i + 1, own]
        x = x + attended @ of["attention.output.weight"].T
        h = norm(x, of["mlp_norm.weight"])
        x = x + (F.silu(h @ of["mlp.gate.weight"].T) * (h @ of["mlp.up.weight"].T)) @ of["mlp.down.weight"].T
    return norm(x, weights["norm.weight"]) @ weights["head.weight"].T


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def score(q: Tensor, k: Tensor, turns: float, rotated: int) -> Tensor:
    """Return the score of a head of 8, of which `rotated` channels rotate, for a key `turns` tokens before the query."""
    angles = [turns * 10_000 ** (-2 * c / rotated) if 2 * c < rotated else 0.0 for c in range(4)]
    planes = [
        (complex(q[c], q[c + 4]) * complex(k[c], k[c + 4]).conjugate() * complex(math.cos(angle), math.sin(angle))).real
        for c, angle in enumerate(angles)
    ]
    return torch.tensor(sum(planes) / math.sqrt(8), dtype=q.dtype)


@pytest.mark.parametrize(
    "changes",
    [
        {"nope_every": 2},
        {"nope_every": 3},
        {"rotary_fraction": 0.5},
        {"rotary_fraction": 0.75},
        {"attention_scale": "log_n"},
        {"nope_every": 2, "rotary_fraction": 0.25, "attention_scale": "log_n"},
    ],
    ids=str,
)
def test_logits_are_the_definition(changes: dict[str, Any]) -> None:
    model = random_model(encoding="rope", **changes).double()
    tokens, positions = tokens_and_positions(batch=1, length=10)
    expected = naive(model, tokens[0])
    assert_close(model(tokens, positions)[0], expected, bounds.LOGITS)
    other = random_model(encoding="rope").double()
    other.load_state_dict(model.state_dict(), strict=False)
    assert relative_difference(other(tokens, positions)[0], expected) > 1e-3


def test_the_state_passes() -> None:
    """The last layer with positions updates the state only while recording streams, and gets no gradient."""
    model = random_model(num_layers=4, nope_every=2)
    model(*tokens_and_positions()).square().sum().backward()
    dead = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert dead == [f"blocks.2.position.{part}" for part in ("gain", "content", "up", "down")]
    with recorded_streams(model) as streams:
        model(*tokens_and_positions())
    first, second, third, fourth = (e for _, e in streams if e is not None)
    assert torch.equal(first, second)
    assert torch.equal(third, fourth)
    assert float((third - second).detach().abs().max()) > 1e-3


def test_a_fresh_tape_is_rope() -> None:
    tape = random_model(nope_every=2)
    rope = random_model(encoding="rope", nope_every=2)
    for block in tape.blocks:
        if block.position is not None:
            block.position.gain.data.zero_()
            block.position.up.data.zero_()
    tape.load_state_dict(rope.state_dict(), strict=False)
    assert_close(tape(*tokens_and_positions()), rope(*tokens_and_positions()), bounds.LOGITS)


@pytest.mark.parametrize("encoding", ["tape", "tape_vector", "randpe", "xpos", "selective_rope", "tape_selective_rope"])
def test_half_of_the_planes_do_not_rotate(encoding: str) -> None:
    """If keys only have non-rotating planes, the model has no positions, unless TAPE moves them."""
    model = random_model(encoding=encoding, rotary_fraction=0.5)
    expected = random_model(encoding="nope")
    model.load_state_dict(expected.state_dict(), strict=False)
    for block in model.blocks:
        if block.position is not None:
            block.position.gain.data.zero_()
            block.position.up.data.zero_()
    inputs = tokens_and_positions()
    assert relative_difference(model(*inputs), expected(*inputs)) > 1e-3
    for block in (*model.blocks, *expected.blocks):
        block.attention.key.weight.data.unflatten(0, (4, 2, 4))[:, :, :2] = 0
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


def test_the_scale_starts_where_scores_are_unchanged_in_the_mean() -> None:
    model = build_model(ModelConfig(**SHAPE | {"attention_scale": "log_n"}))
    start = spec_of(model.get_parameter("blocks.0.attention.log_scale.scale")).init
    assert isinstance(start, float)
    assert sum(start * math.log(n) for n in range(1, 65)) / 64 == pytest.approx(1)


def test_biases_are_not_scaled() -> None:
    """Zero queries leave only the bias, whatever the scale."""
    for encoding in ("t5", "fox"):
        model = random_model(encoding=encoding)
        scaled = random_model(encoding=encoding, attention_scale="log_n")
        scaled.load_state_dict(model.state_dict(), strict=False)
        assert relative_difference(scaled(*tokens_and_positions()), model(*tokens_and_positions())) > 1e-3
        for block in (*model.blocks, *scaled.blocks):
            block.attention.query.weight.data.zero_()
        assert_close(scaled(*tokens_and_positions()), model(*tokens_and_positions()), bounds.LOGITS)


SWITCHES: dict[str, Any] = {"nope_every": 2, "attention_scale": "log_n"}
CASES = [(encoding, SWITCHES) for encoding in ENCODINGS if encoding != "cope"]
CASES += [("cope", {"nope_every": 2}), ("tape", {"rotary_fraction": 0.5}), ("selective_rope", {"rotary_fraction": 0.5})]


@pytest.mark.parametrize(("encoding", "changes"), CASES, ids=str)
def test_documents(encoding: str, changes: dict[str, Any]) -> None:
    model, (tokens, _) = random_model(encoding=encoding, **changes), tokens_and_positions(batch=1, length=60)
    pieces = [tokens[:, :7], tokens[:, 7:]]
    positions = torch.cat([torch.arange(7), torch.arange(53)])[None]
    starts = torch.tensor([0] * 7 + [7] * 53)[None]
    alone = torch.cat([model(piece, torch.arange(piece.shape[1])[None]) for piece in pieces], dim=1)
    packed = model(tokens, positions, starts)
    assert_close(packed, alone, bounds.LOGITS)
    for name, weight in model.named_parameters():
        if name.startswith("blocks.1.") and weight.requires_grad:
            gradients = [
                torch.autograd.grad(logits.square().sum(), weight, retain_graph=True, allow_unused=True)[0]
                for logits in (packed, alone)
            ]
            assert all(gradient is not None for gradient in gradients), name
            assert_close(gradients[0], gradients[1], bounds.PACKED_GRADIENTS, what=name)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoding": "nope", "nope_every": 2}, "nope_every 2 does not support encoding nope, which has no positions"),
        ({"encoding": "sinusoidal", "nope_every": 2}, "adds them to the embedding, which reaches all layers: remove it"),
        ({"nope_every": 4}, "nope_every 4 is more than num_layers 3, so every layer would have positions"),
        ({"nope_every": 1}, "nope_every"),
        (
            {"encoding": "alibi", "rotary_fraction": 0.5},
            "rotary_fraction 0.5 does not support encoding alibi",
        ),
        ({"rotary_fraction": 0.4}, "rotary_fraction 0.4 of head_dim 8 is 3.2 channels: it must be an even number"),
        ({"rotary_fraction": 0.1}, "rotary_fraction 0.1 of head_dim 8 is 0.8 channels"),
        ({"rotary_fraction": 1.5}, "rotary_fraction"),
        (
            {"encoding": "cope", "attention_scale": "log_n"},
            "attention_scale log_n does not support encoding cope, whose",
        ),
        ({"attention_scale": "log"}, "attention_scale"),
        ({"rotary_fraction": 0.25, "scaling": {"kind": "theta", "factor": 2.0}}, "more than 2 channels rotate"),
    ],
    ids=str,
)
def test_what_makes_no_sense(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ModelConfig(**SHAPE | changes)
