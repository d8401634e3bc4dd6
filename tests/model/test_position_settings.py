"""Layers without positions, partly rotated heads, and scores growing with the number of keys.

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
from tests.helpers.models.packed_documents import assert_documents_are_independent
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
    "grape_ap",
    "pope",
    "repo",
    "rope_conv",
    "cope",
    "path_fox",
    "selective_rope",
)


def naive(model: Transformer, tokens: Tensor) -> Tensor:
    """Compute logits [N, V] for a text [N] with rotary positions, taking tokens pair by pair and plane by plane."""
    config = model.config
    num_rotated = round(8 * config.rotary_fraction)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    x = weights["embedding.weight"][tokens]
    for layer in range(config.num_layers):
        prefix = f"blocks.{layer}."
        layer_weights = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
        has_positions = config.nope_every is None or (layer + 1) % config.nope_every != 0
        log_scales = None
        if config.attention_scale == "log_n":
            log_scales = layer_weights["attention.log_scale.scale"]
        h = normalized(x, layer_weights["attention_norm.weight"])
        q = h @ layer_weights["attention.query.weight"].T
        k = h @ layer_weights["attention.key.weight"].T
        v = h @ layer_weights["attention.value.weight"].T
        attended = naive_attention(q, k, v, has_positions, num_rotated, log_scales)
        x = x + attended @ layer_weights["attention.output.weight"].T
        h = normalized(x, layer_weights["mlp_norm.weight"])
        active = F.silu(h @ layer_weights["mlp.gate.weight"].T) * (h @ layer_weights["mlp.up.weight"].T)
        x = x + active @ layer_weights["mlp.down.weight"].T
    return normalized(x, weights["norm.weight"]) @ weights["head.weight"].T


def naive_attention(
    q: Tensor, k: Tensor, v: Tensor, has_positions: bool, num_rotated: int, log_scales: Tensor | None
) -> Tensor:
    """Compute attention with 4 heads of size 8.

    Args:
        q: Queries, [N, 32].
        k: Keys, [N, 32].
        v: Values, [N, 32].
        has_positions: Whether queries and keys rotate.
        num_rotated: Number of rotating channels in each head.
        log_scales: Scale for each head, multiplying the logarithm of the number of keys.
    """
    attended = torch.zeros_like(q)
    for head, i in itertools.product(range(4), range(len(q))):
        channels = slice(8 * head, 8 * head + 8)
        scores = torch.zeros(i + 1, dtype=q.dtype)
        for j in range(i + 1):
            distance = 0
            if has_positions:
                distance = i - j
            scores[j] = score(q[i, channels], k[j, channels], distance, num_rotated)
        if log_scales is not None:
            scores = scores * log_scales[head] * math.log(i + 1)
        attended[i, channels] = scores.softmax(0) @ v[: i + 1, channels]
    return attended


def normalized(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def score(q: Tensor, k: Tensor, distance: int, num_rotated: int) -> float:
    """Return the score for a query and a key with 8 channels, rotating `num_rotated`."""
    total = 0.0
    for plane in range(4):
        angle = 0.0
        if 2 * plane < num_rotated:
            angle = distance * 10_000 ** (-2 * plane / num_rotated)
        query = complex(q[plane], q[plane + 4])
        key = complex(k[plane], k[plane + 4])
        total += (query * key.conjugate() * complex(math.cos(angle), math.sin(angle))).real
    return total / math.sqrt(8)


def zero_position_updates(model: Transformer) -> None:
    for block in model.blocks:
        if block.position is not None:
            block.position.gain.data.zero_()
            block.position.up.data.zero_()


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
    unchanged = random_model(encoding="rope").double()
    unchanged.load_state_dict(model.state_dict(), strict=False)
    assert relative_difference(unchanged(tokens, positions)[0], expected) > 1e-3


def test_layers_without_positions_pass_the_state_on() -> None:
    """The last layer with positions updates the state only while recording streams, and gets no gradient."""
    model = random_model(num_layers=4, nope_every=2)
    model(*tokens_and_positions()).square().sum().backward()
    dead = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert dead == [f"blocks.2.position.{part}" for part in ("gain", "content", "up", "down")]
    with recorded_streams(model) as streams:
        model(*tokens_and_positions())
    states = [e.detach() for _, e in streams if e is not None]
    assert len(states) == 4
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[2], states[3])
    assert float((states[2] - states[1]).abs().max()) > 1e-3


def test_a_fresh_tape_is_rope() -> None:
    tape = random_model(nope_every=2)
    rope = random_model(encoding="rope", nope_every=2)
    zero_position_updates(tape)
    tape.load_state_dict(rope.state_dict(), strict=False)
    assert_close(tape(*tokens_and_positions()), rope(*tokens_and_positions()), bounds.LOGITS)


@pytest.mark.parametrize("encoding", ["tape", "tape_vector", "randpe", "xpos", "repo", "selective_rope", "tape_selective_rope"])
def test_half_of_the_planes_do_not_rotate(encoding: str) -> None:
    """With only non-rotating planes in keys, the model has no positions. TAPE's updates would mix planes, so they are zero."""
    model = random_model(encoding=encoding, rotary_fraction=0.5)
    expected = random_model(encoding="nope")
    model.load_state_dict(expected.state_dict(), strict=False)
    zero_position_updates(model)
    inputs = tokens_and_positions()
    assert relative_difference(model(*inputs), expected(*inputs)) > 1e-3
    for block in (*model.blocks, *expected.blocks):
        block.attention.key.weight.data.unflatten(0, (4, 2, 4))[:, :, :2] = 0
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


def test_the_scale_starts_at_a_mean_of_one() -> None:
    model = build_model(ModelConfig(**SHAPE | {"attention_scale": "log_n"}))
    start = spec_of(model.get_parameter("blocks.0.attention.log_scale.scale")).init
    assert isinstance(start, float)
    assert sum(start * math.log(n) for n in range(1, 65)) / 64 == pytest.approx(1)


@pytest.mark.parametrize("encoding", ["t5", "fox"])
def test_biases_are_not_scaled(encoding: str) -> None:
    """Zero queries leave only the bias, whatever the scale."""
    inputs = tokens_and_positions()
    model = random_model(encoding=encoding)
    scaled = random_model(encoding=encoding, attention_scale="log_n")
    scaled.load_state_dict(model.state_dict(), strict=False)
    assert relative_difference(scaled(*inputs), model(*inputs)) > 1e-3
    for block in (*model.blocks, *scaled.blocks):
        block.attention.query.weight.data.zero_()
    assert_close(scaled(*inputs), model(*inputs), bounds.LOGITS)


SWITCHES: dict[str, Any] = {"nope_every": 2, "attention_scale": "log_n"}
PACKED: list[tuple[str, dict[str, Any]]] = [
    *((encoding, SWITCHES) for encoding in ENCODINGS if encoding != "cope"),
    ("cope", {"nope_every": 2}),
    ("tape", {"rotary_fraction": 0.5}),
    ("selective_rope", {"rotary_fraction": 0.5}),
    ("rope_conv", {"rotary_fraction": 0.5}),
]


@pytest.mark.parametrize(("encoding", "changes"), PACKED, ids=str)
def test_packed_documents_are_independent(encoding: str, changes: dict[str, Any]) -> None:
    model = random_model(encoding=encoding, **changes)
    weight_names = [name for name, weight in model.named_parameters() if name.startswith("blocks.1.") and weight.requires_grad]
    assert_documents_are_independent(model, [0, 7, 60], weight_names)


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
def test_contradictory_switches_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ModelConfig(**SHAPE | changes)
