"""Encodings that read the content, each against its published definition, one pair of tokens at a time in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.config import ModelConfig
from megatape.encodings.fox import Decay
from megatape.encodings.path import PathBias
from megatape.encodings.selective_rope import SelectiveRope
from megatape.lab.study.attention.layer_inputs import LayerInputs, probabilities, run
from megatape.model.build import build_model
from megatape.model.init import initial_weight
from megatape.model.transformer import Transformer
from megatape.nn.parameters import spec_of
from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.small_models import SHAPE, random_model, tokens_and_positions

pytestmark = pytest.mark.numerics

LENGTH = 12


def layer_of(encoding: str) -> LayerInputs:
    """The only layer of a random model in float64, with grouped queries, and its inputs."""
    model = random_model(encoding=encoding, num_layers=1, num_kv_heads=2, std=0.6).double()
    _, (layer,) = run(model, *tokens_and_positions(batch=1, length=LENGTH))
    return layer


def heads(layer: LayerInputs) -> list[tuple[Tensor, Tensor, int]]:
    """Queries and keys [N, R] of each head, and its key/value head."""
    q, k, _ = layer.attention.heads(layer.h)
    return [(q[0, :, head].detach(), k[0, :, head // 2].detach(), head // 2) for head in range(4)]


def cope(q: Tensor, k: Tensor, embedding: Tensor) -> Tensor:
    """Scores of one head: q, k [N, R], embedding [R, P], divided by sqrt R where q . E is."""
    scores = q @ k.T / q.shape[1] ** 0.5
    result = scores.clone()
    for i in range(len(q)):
        for j in range(i + 1):
            position = min(sum(torch.sigmoid(scores[i, m]) for m in range(j, i + 1)), torch.tensor(embedding.shape[1] - 1.0))
            below = int(position.floor())
            above = int(position.ceil())
            share = position - position.floor()
            result[i, j] += (1 - share) * (q[i] @ embedding[:, below]) + share * (q[i] @ embedding[:, above])
    return result


def fox(q: Tensor, k: Tensor, log_gates: Tensor) -> Tensor:
    """Scores of one head: log_gates [N]; between a query and a key lie the gates after the key."""
    scores = q @ k.T / q.shape[1] ** 0.5
    for i in range(len(q)):
        for j in range(i + 1):
            scores[i, j] += log_gates[j + 1 : i + 1].sum()
    return scores


def pope(q: Tensor, k: Tensor, delta: Tensor) -> Tensor:
    """Scores of one head: delta [R]."""
    size = q.shape[1]
    scores = torch.zeros(len(q), len(k), dtype=q.dtype)
    for i in range(len(q)):
        for j in range(i + 1):
            for c in range(size):
                length = math.log1p(math.exp(q[i, c])) * math.log1p(math.exp(k[j, c]))
                scores[i, j] += length * math.cos((i - j) * 10_000 ** (-c / size) - float(delta[c])) / size**0.5
    return scores


def selective_rope(
    q: Tensor, k: Tensor, z: Tensor, weight: Tensor, by_silu: bool, constant: Tensor | None, gate: Tensor
) -> Tensor:
    """Scores of one head: z [N, R/2] before the convolution, weight [R/2, 4]; a [R/2] of a constant step, g [N]."""
    size = q.shape[1]
    scores = torch.zeros(len(q), len(k), dtype=q.dtype)
    phi = torch.zeros(len(q), size // 2, dtype=q.dtype)
    for i in range(len(q)):
        step = sum((weight[:, 3 - back] * z[i - back] for back in range(min(i, 3) + 1)), torch.zeros(size // 2))
        step = step * torch.sigmoid(step) if by_silu else step
        step = step if constant is None else step + torch.exp(constant)
        phi[i] = (phi[i - 1] if i else 0) + gate[i] * step
    for i in range(len(q)):
        for j in range(i + 1):
            for plane in range(size // 2):
                query, key = (complex(x[plane], x[plane + size // 2]) for x in (q[i], k[j]))
                angle = float(phi[i, plane] - phi[j, plane]) * 500_000 ** (-2 * plane / size)
                scores[i, j] += (query * key.conjugate() * complex(math.cos(angle), math.sin(angle))).real / size**0.5
    return scores


def path(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """Scores of one head: w [N, R], beta [N]."""
    scores = torch.zeros(len(q), len(k), dtype=q.dtype)
    for j in range(len(k)):
        key = k[j]
        for i in range(j, len(q)):
            if i > j:
                key = key - beta[i] * w[i] * (w[i] @ key)
            scores[i, j] = q[i] @ key / q.shape[1] ** 0.5
    return scores


def directions(direction: Tensor, kernels: Tensor) -> Tensor:
    """w [N, R] of PaTH, from [N, R] before the convolution and its weights [R, 3]."""
    result = torch.zeros_like(direction)
    for i in range(len(direction)):
        step = sum((kernels[:, 2 - back] * direction[i - back] for back in range(min(i, 2) + 1)), torch.zeros(()))
        result[i] = step * torch.sigmoid(step)
    return result / result.norm(dim=-1, keepdim=True)


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    """Scores [N, N] of each head by its definition."""
    attention = layer.attention
    weights = {name: weight.detach() for name, weight in attention.named_parameters()}
    scale = 8**-0.5 if encoding.endswith("_scaled") else 1.0
    if encoding.startswith("cope"):
        return [cope(q, k, weights["bias.embedding"] * scale) for q, k, _ in heads(layer)]
    if encoding == "fox":
        gates = layer.h[0] @ weights["token_features.gate.weight"].T + weights["token_features.gate.bias"]
        return [fox(q, k, F.logsigmoid(gates[:, head])) for head, (q, k, _) in enumerate(heads(layer))]
    if encoding.startswith("pope"):
        return [pope(q, k, weights["token_features.delta"][channel]) for q, k, channel in heads(layer)]
    if encoding.startswith("path"):
        gated = encoding.startswith("path_fox")
        of = "token_features.reflections." if gated else "token_features."
        low = layer.h[0] @ weights[of + "down"].T @ weights[of + "up"].T
        beta = 2 * torch.sigmoid(layer.h[0] @ weights[of + "strength.weight"].T + weights[of + "strength.bias"])
        kernels = weights["sequence_features.directions.weight" if gated else "sequence_features.weight"]
        found = []
        for head, (q, k, channel) in enumerate(heads(layer)):
            own = slice(8 * channel, 8 * channel + 8)
            found.append(path(q, k, directions(low[:, own], kernels[own]), beta[:, channel]))
            if gated:
                gate = F.linear(
                    layer.h[0], weights["token_features.gates.gate.weight"], weights["token_features.gates.gate.bias"]
                )
                found[-1] += fox(torch.zeros_like(q), k, F.logsigmoid(gate[:, head]) * scale)
        return found
    slices = layer.h[0].chunk(2, dim=-1)
    u = torch.cat([part / part.norm(dim=-1, keepdim=True) for part in slices], dim=-1)
    z = u @ weights["token_features.down"].T @ weights["token_features.up"].T
    kernels = weights["sequence_features.weight"]
    planes = [slice(4 * channel, 4 * channel + 4) for channel in range(2)]
    constant = weights.get("sequence_features.constant")
    gates = torch.ones(LENGTH, 2, dtype=torch.float64)
    if encoding == "selective_rope_gated":
        gates = torch.sigmoid(F.linear(u, weights["token_features.gate.weight"], weights["token_features.gate.bias"]))
    assert (constant is not None) == (encoding in ("selective_rope_constant", "selective_rope_gated"))
    found = []
    for q, k, channel in heads(layer):
        own = planes[channel]
        options = encoding != "selective_rope_linear", None if constant is None else constant[own]
        found.append(selective_rope(q, k, z[:, own], kernels[own], *options, gates[:, channel]))
    return found


BY_CONTENT = [name for name in ENCODINGS if name.startswith(("cope", "fox", "path", "pope", "selective_rope"))]


@pytest.mark.parametrize("encoding", BY_CONTENT)
def test_attention_is_the_definition(encoding: str) -> None:
    layer = layer_of(encoding)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected = [scores.masked_fill(later, -math.inf).softmax(-1) for scores in expected_scores(layer, encoding)]
    assert_close(probabilities(layer)[0].double(), torch.stack(expected), bounds.ATTENTION)


def shared_weights(encoding: str, other: str) -> tuple[Transformer, Transformer]:
    """Random models with these encodings and the same other weights."""
    model = random_model(encoding=encoding)
    expected = random_model(encoding=other)
    model.load_state_dict(expected.state_dict(), strict=False)
    return model, expected


def set_weights(model: Transformer, **values: float) -> None:
    for name, weight in model.named_parameters():
        for end, value in values.items():
            if ".attention." in name and name.endswith(f"features.{end}".replace("_", ".")):
                weight.data.fill_(value)


def test_identities() -> None:
    """CoPE with a table of zeros and FoX with open gates are NoPE; FoX with equal gates is ALiBi with equal slopes."""
    inputs = tokens_and_positions()
    model, expected = shared_weights("cope", "nope")
    assert relative_difference(model(*inputs), expected(*inputs)) > 1e-3
    for block in model.blocks:
        block.attention.bias.embedding.data.zero_()
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)

    model, expected = shared_weights("fox", "nope")
    set_weights(model, gate_weight=0.0, gate_bias=800.0)
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)
    model, expected = shared_weights("fox", "alibi")
    set_weights(model, gate_weight=0.0)
    slopes = 2.0 ** (-8 / 4 * torch.arange(1, 5, dtype=torch.float64))
    for block in model.blocks:
        block.attention.token_features.gate.bias.data.copy_(-slopes.expm1().log())
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


def test_selective_rope_with_equal_steps_is_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(encoding="selective_rope")
    expected = random_model(encoding="rope", rotary_base=500_000.0)
    model.load_state_dict(expected.state_dict(), strict=False)
    inputs = tokens_and_positions()
    rotate = SelectiveRope.rotate_qk

    def constant(self: SelectiveRope, q: Tensor, k: Tensor, state: None, features: tuple[Tensor]) -> tuple[Tensor, Tensor]:
        return rotate(self, q, k, state, (torch.ones_like(features[0]).cumsum(1),))

    assert relative_difference(model(*inputs), expected(*inputs)) > 1e-3
    monkeypatch.setattr(SelectiveRope, "rotate_qk", constant)
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


def test_selective_rope_of_open_gates_and_no_content_is_rope() -> None:
    """By its weights: the constant step is exp 0."""
    inputs = tokens_and_positions()
    model = random_model(encoding="selective_rope_gated")
    expected = random_model(encoding="rope", rotary_base=500_000.0)
    model.load_state_dict(expected.state_dict(), strict=False)
    assert relative_difference(model(*inputs), expected(*inputs)) > 1e-3
    set_weights(model, up=0.0, constant=0.0, gate_weight=0.0, gate_bias=800.0)
    assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


def test_path_without_reflections_is_nope_or_fox() -> None:
    inputs = tokens_and_positions()
    for encoding, other, name in (("path", "nope", "strength"), ("path_fox", "fox", "reflections.strength")):
        model = random_model(encoding=encoding)
        expected = random_model(encoding=other)
        shared = {key.replace("features.gate.", "features.gates.gate."): value for key, value in expected.state_dict().items()}
        model.load_state_dict(shared, strict=False)
        assert relative_difference(model(*inputs), expected(*inputs)) > 1e-3
        for block in model.blocks:
            strength = block.attention.token_features.get_submodule(name)
            strength.weight.data.zero_()
            strength.bias.data.fill_(-800.0)
        assert_close(model(*inputs), expected(*inputs), bounds.LOGITS)


@pytest.mark.parametrize("length", [40, 64, 200])
def test_path_with_one_mirror_knows_only_the_parity_of_distances(length: int) -> None:
    """Twice the same reflection is none, whether the two are of one chunk or of two. As exact after many as after few."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, length, heads, 8, generator=generator) for heads in (4, 2))
    w = torch.tensor([0.5] * 4 + [0.0] * 4).expand(1, length, 2, 8)  # of length 1 exactly: the power of another would grow
    bias = PathBias(4, 2, 8)
    scores = bias.scores(bias(q, k, (w, torch.full((1, length, 2, 1), 2.0))), None, past=0)
    found = scores.block(scores.weights, slice(0, length), slice(0, length))[0]
    keys = k[0].repeat_interleave(2, 1).transpose(0, 1)
    mirrored = -2 * (q[0].transpose(0, 1) @ w[0, 0, 0])[:, :, None] * (keys @ w[0, 0, 0])[:, None] / 8**0.5
    index = torch.arange(length)
    expected = torch.where((index[:, None] - index) % 2 == 1, mirrored, 0.0).tril()
    assert_close(found.tril(), expected, bounds.ATTENTION)


def test_decay_after_many_tokens_is_as_exact_as_at_first() -> None:
    """c falls to -11,000; in float32 its differences of 1e-4 would be lost."""
    gates = torch.full((1, 16_384, 1, 1), -0.7, dtype=torch.float64)
    decay = Decay(gates.cumsum(1))
    near, far = (decay.block(decay.weights, slice(start, start + 8), slice(start, start + 8)) for start in (0, 16_376))
    assert_close(far, near, bounds.DEFINITION)


def test_every_step_clips_the_phases_of_pope() -> None:
    """The engine does, on the master weight: a clip in the forward pass would leave a phase at a bound without a gradient."""
    model = random_model(encoding="pope", num_layers=1)
    delta = model.get_parameter("blocks.0.attention.token_features.delta")
    assert spec_of(delta).bounds == (-2 * math.pi, 0.0)


def test_phases_of_pope_start_at_zero_or_anywhere() -> None:
    name = "blocks.0.attention.token_features.delta"
    shape = SHAPE | {"num_layers": 1, "hidden_size": 256, "num_heads": 16, "num_kv_heads": 16}
    models = {encoding: build_model(ModelConfig(**shape | {"encoding": encoding})) for encoding in ("pope", "pope_uniform")}
    start, anywhere = (initial_weight(name, model.get_parameter(name), 0.02, 0) for model in models.values())
    assert not start.any()
    assert -2 * math.pi < anywhere.min() < -6
    assert -0.3 < anywhere.max() < 0
    assert abs(anywhere.mean() + math.pi) < 0.6


def test_slices_need_a_multiple() -> None:
    with pytest.raises(ValueError, match="hidden_size 30 is not a multiple of num_kv_heads 4: encoding selective_rope"):
        ModelConfig(**SHAPE | {"encoding": "selective_rope", "hidden_size": 30, "head_dim": 8})


def test_scores_that_are_not_numbers_stay_so() -> None:
    """An index made from NaN would end the process, on a GPU with its context, before the run can say that it diverged."""
    model = random_model(encoding="cope", num_layers=1)
    model.embedding.weight.data[0] = math.nan
    assert model(torch.zeros(1, 5, dtype=torch.long), torch.arange(5)[None]).isnan().all()
