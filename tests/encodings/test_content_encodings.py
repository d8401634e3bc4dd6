"""Encodings that read the content, each against its published definition, one pair of tokens at a time in float64."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

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


class Head(NamedTuple):
    """Head of a layer.

    Attributes:
        q: Queries, [N, R].
        k: Keys, [N, R].
        number: Index of the head.
        channel: Index of its key/value head.
    """

    q: Tensor
    k: Tensor
    number: int
    channel: int

    @property
    def num_tokens(self) -> int:
        return len(self.q)

    @property
    def size(self) -> int:
        return self.q.shape[1]

    @property
    def pairs(self) -> Iterator[tuple[int, int]]:
        """Visible pairs of a query i and a key j."""
        for i in range(self.num_tokens):
            for j in range(i + 1):
                yield i, j

    def products(self) -> Tensor:
        """Return q k / sqrt R of all pairs, [N, N]."""
        return self.q @ self.k.T / self.size**0.5

    def zeros(self) -> Tensor:
        return torch.zeros(self.num_tokens, self.num_tokens, dtype=self.q.dtype)

    def channel_slice(self, size: int) -> slice:
        """Return the elements of this head's key/value head, in a tensor with `size` elements per key/value head."""
        return slice(size * self.channel, size * (self.channel + 1))


def layer_of(encoding: str) -> LayerInputs:
    """Return the only layer of a random model in float64, with grouped queries, and its inputs."""
    model = random_model(encoding=encoding, num_layers=1, num_kv_heads=2, std=0.6).double()
    _, (layer,) = run(model, *tokens_and_positions(batch=1, length=LENGTH))
    return layer


def heads_of(layer: LayerInputs) -> list[Head]:
    q, k, _ = layer.attention.heads(layer.h)
    heads = []
    for index in range(4):
        channel = index // 2
        heads.append(Head(q[0, :, index].detach(), k[0, :, channel].detach(), index, channel))
    return heads


def cope_scores(head: Head, embedding: Tensor) -> Tensor:
    """Return the scores of a head.

    Args:
        head: Head.
        embedding: Embeddings of positions, [R, P], divided by sqrt R if q . E is.
    """
    products = head.products()
    last_position = torch.tensor(embedding.shape[1] - 1.0)
    scores = products.clone()
    for i, j in head.pairs:
        gates = sum(torch.sigmoid(products[i, m]) for m in range(j, i + 1))
        position = min(gates, last_position)
        below = int(position.floor())
        above = int(position.ceil())
        share = position - position.floor()
        scores[i, j] += (1 - share) * (head.q[i] @ embedding[:, below]) + share * (head.q[i] @ embedding[:, above])
    return scores


def decay(head: Head, log_gates: Tensor) -> Tensor:
    """Return the sums of log_gates [N] between each key and query, excluding the key's own gate."""
    sums = head.zeros()
    for i, j in head.pairs:
        sums[i, j] = log_gates[j + 1 : i + 1].sum()
    return sums


def pope_scores(head: Head, delta: Tensor) -> Tensor:
    """Return the scores of a head with phases delta [R]."""
    scores = head.zeros()
    for i, j in head.pairs:
        for c in range(head.size):
            length = math.log1p(math.exp(head.q[i, c])) * math.log1p(math.exp(head.k[j, c]))
            angle = (i - j) * 10_000 ** (-c / head.size) - float(delta[c])
            scores[i, j] += length * math.cos(angle) / head.size**0.5
    return scores


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """Return a causal convolution of x [N, C] with weight [C, number of tokens], whose last column is the current token's."""
    result = torch.zeros_like(x)
    last = weight.shape[1] - 1
    for i in range(len(x)):
        for back in range(min(i, last) + 1):
            result[i] += weight[:, last - back] * x[i - back]
    return result


def rotated_scores(head: Head, phases: Tensor) -> Tensor:
    """Return the scores of a head whose queries and keys rotate by phases [N, R/2] times RoPE's frequencies."""
    num_planes = head.size // 2
    scores = head.zeros()
    for i, j in head.pairs:
        for plane in range(num_planes):
            query = complex(head.q[i, plane], head.q[i, plane + num_planes])
            key = complex(head.k[j, plane], head.k[j, plane + num_planes])
            angle = float(phases[i, plane] - phases[j, plane]) * 500_000 ** (-2 * plane / head.size)
            rotation = complex(math.cos(angle), math.sin(angle))
            scores[i, j] += (query * key.conjugate() * rotation).real / head.size**0.5
    return scores


def path_scores(head: Head, w: Tensor, beta: Tensor) -> Tensor:
    """Return the scores of a head with directions w [N, R] and strengths beta [N]."""
    scores = head.zeros()
    for j in range(head.num_tokens):
        key = head.k[j]
        for i in range(j, head.num_tokens):
            if i > j:
                key = key - beta[i] * w[i] * (w[i] @ key)
            scores[i, j] = head.q[i] @ key / head.size**0.5
    return scores


def expected_scores(layer: LayerInputs, encoding: str) -> list[Tensor]:
    """Return the scores [N, N] of each head by the encoding's definition."""
    if encoding.startswith("cope"):
        return expected_cope(layer, encoding)
    if encoding.startswith("fox"):
        return expected_fox(layer)
    if encoding.startswith("pope"):
        return expected_pope(layer)
    if encoding.startswith("path"):
        return expected_path(layer, encoding)
    return expected_selective_rope(layer, encoding)


def weights_of(layer: LayerInputs) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in layer.attention.named_parameters()}


def expected_cope(layer: LayerInputs, encoding: str) -> list[Tensor]:
    embedding = weights_of(layer)["bias.embedding"]
    if encoding.endswith("_scaled"):
        embedding = embedding * 8**-0.5
    return [cope_scores(head, embedding) for head in heads_of(layer)]


def expected_fox(layer: LayerInputs) -> list[Tensor]:
    weights = weights_of(layer)
    gates = F.linear(layer.h[0], weights["token_features.gate.weight"], weights["token_features.gate.bias"])
    return [head.products() + decay(head, F.logsigmoid(gates[:, head.number])) for head in heads_of(layer)]


def expected_pope(layer: LayerInputs) -> list[Tensor]:
    delta = weights_of(layer)["token_features.delta"]
    return [pope_scores(head, delta[head.channel]) for head in heads_of(layer)]


def expected_path(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    h = layer.h[0]
    gated = encoding.startswith("path_fox")
    prefix = "token_features."
    convolution = "sequence_features.weight"
    if gated:
        prefix = "token_features.reflections."
        convolution = "sequence_features.directions.weight"
    convolved = convolve(h @ weights[f"{prefix}down"].T @ weights[f"{prefix}up"].T, weights[convolution])
    directions = F.silu(convolved)
    beta = 2 * torch.sigmoid(F.linear(h, weights[f"{prefix}strength.weight"], weights[f"{prefix}strength.bias"]))
    expected = []
    for head in heads_of(layer):
        w = directions[:, head.channel_slice(8)]
        scores = path_scores(head, w / w.norm(dim=-1, keepdim=True), beta[:, head.channel])
        if gated:
            gates = F.linear(h, weights["token_features.gates.gate.weight"], weights["token_features.gates.gate.bias"])
            log_gates = F.logsigmoid(gates[:, head.number])
            if encoding.endswith("_scaled"):
                log_gates = log_gates * 8**-0.5
            scores += decay(head, log_gates)
        expected.append(scores)
    return expected


def expected_selective_rope(layer: LayerInputs, encoding: str) -> list[Tensor]:
    weights = weights_of(layer)
    slices = layer.h[0].chunk(2, dim=-1)
    u = torch.cat([part / part.norm(dim=-1, keepdim=True) for part in slices], dim=-1)
    z = u @ weights["token_features.down"].T @ weights["token_features.up"].T
    steps = convolve(z, weights["sequence_features.weight"])
    if encoding != "selective_rope_linear":
        steps = F.silu(steps)
    constant = weights.get("sequence_features.constant")
    assert (constant is not None) == (encoding in ("selective_rope_constant", "selective_rope_gated"))
    if constant is not None:
        steps = steps + constant.exp()
    gates = torch.ones(LENGTH, 2, dtype=torch.float64)
    if encoding == "selective_rope_gated":
        gates = torch.sigmoid(F.linear(u, weights["token_features.gate.weight"], weights["token_features.gate.bias"]))
    expected = []
    for head in heads_of(layer):
        gated_steps = gates[:, head.channel, None] * steps[:, head.channel_slice(4)]
        expected.append(rotated_scores(head, gated_steps.cumsum(0)))
    return expected


BY_CONTENT = [name for name in ENCODINGS if name.startswith(("cope", "fox", "path", "pope", "selective_rope"))]


@pytest.mark.parametrize("encoding", BY_CONTENT)
def test_attention_is_the_definition(encoding: str) -> None:
    layer = layer_of(encoding)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    scores = torch.stack(expected_scores(layer, encoding))
    expected = scores.masked_fill(later, -math.inf).softmax(-1)
    assert_close(probabilities(layer)[0].double(), expected, bounds.ATTENTION)


def shared_weights(encoding: str, reference_encoding: str, **changes: Any) -> tuple[Transformer, Transformer]:
    """Return random models with these encodings and the same other weights.

    Args:
        encoding: Encoding of the first model.
        reference_encoding: Encoding of the second model.
        changes: Further changes of the second model's shape.
    """
    model = random_model(encoding=encoding)
    reference = random_model(encoding=reference_encoding, **changes)
    model.load_state_dict(reference.state_dict(), strict=False)
    return model, reference


def assert_equal_functions(model: Transformer, reference: Transformer) -> None:
    inputs = tokens_and_positions()
    assert_close(model(*inputs), reference(*inputs), bounds.LOGITS)


def assert_different_functions(model: Transformer, reference: Transformer) -> None:
    inputs = tokens_and_positions()
    assert relative_difference(model(*inputs), reference(*inputs)) > 1e-3


def set_weights(model: Transformer, **values: float) -> None:
    """Set weights of the encoding's features: gate_bias=1.0 sets all names that end in `features.gate.bias`."""
    for name, weight in model.named_parameters():
        for suffix, value in values.items():
            if ".attention." in name and name.endswith(f"features.{suffix}".replace("_", ".")):
                weight.data.fill_(value)


def test_cope_with_a_zero_table_is_nope() -> None:
    model, nope = shared_weights("cope", "nope")
    assert_different_functions(model, nope)
    for block in model.blocks:
        block.attention.bias.embedding.data.zero_()
    assert_equal_functions(model, nope)


def test_fox_with_open_gates_is_nope() -> None:
    model, nope = shared_weights("fox", "nope")
    set_weights(model, gate_weight=0.0, gate_bias=800.0)
    assert_equal_functions(model, nope)


def test_fox_with_equal_gates_is_alibi() -> None:
    model, alibi = shared_weights("fox", "alibi")
    set_weights(model, gate_weight=0.0)
    slopes = 2.0 ** (-8 / 4 * torch.arange(1, 5, dtype=torch.float64))
    for block in model.blocks:
        block.attention.token_features.gate.bias.data.copy_(-slopes.expm1().log())
    assert_equal_functions(model, alibi)


def test_selective_rope_with_equal_steps_is_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rope = shared_weights("selective_rope", "rope", rotary_base=500_000.0)
    assert_different_functions(model, rope)
    rotate = SelectiveRope.rotate_qk

    def constant(self: SelectiveRope, q: Tensor, k: Tensor, state: None, features: tuple[Tensor]) -> tuple[Tensor, Tensor]:
        return rotate(self, q, k, state, (torch.ones_like(features[0]).cumsum(1),))

    monkeypatch.setattr(SelectiveRope, "rotate_qk", constant)
    assert_equal_functions(model, rope)


def test_selective_rope_with_open_gates_and_no_content_is_rope() -> None:
    """The weights alone make it RoPE: the constant step is exp 0."""
    model, rope = shared_weights("selective_rope_gated", "rope", rotary_base=500_000.0)
    assert_different_functions(model, rope)
    set_weights(model, up=0.0, constant=0.0, gate_weight=0.0, gate_bias=800.0)
    assert_equal_functions(model, rope)


@pytest.mark.parametrize(
    ("encoding", "reference_encoding", "strength_name"),
    [("path", "nope", "strength"), ("path_fox", "fox", "reflections.strength")],
)
def test_path_without_reflections_is_nope_or_fox(encoding: str, reference_encoding: str, strength_name: str) -> None:
    model = random_model(encoding=encoding)
    reference = random_model(encoding=reference_encoding)
    shared = {}
    for name, weight in reference.state_dict().items():
        shared[name.replace("features.gate.", "features.gates.gate.")] = weight
    model.load_state_dict(shared, strict=False)
    assert_different_functions(model, reference)
    for block in model.blocks:
        strength = block.attention.token_features.get_submodule(strength_name)
        strength.weight.data.zero_()
        strength.bias.data.fill_(-800.0)
    assert_equal_functions(model, reference)


@pytest.mark.parametrize("length", [40, 64, 200])
def test_path_with_one_mirror_knows_only_the_parity_of_distances(length: int) -> None:
    """Reflecting twice changes nothing, within a chunk and across chunks, and the error does not grow with the tokens."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, length, 4, 8, generator=generator)
    k = torch.randn(1, length, 2, 8, generator=generator)
    direction = torch.tensor([0.5] * 4 + [0.0] * 4)  # its length is exactly 1; powers of another length would grow
    w = direction.expand(1, length, 2, 8)
    strength = torch.full((1, length, 2, 1), 2.0)
    bias = PathBias(4, 2, 8)
    every_token = slice(0, length)

    scores = bias.scores(bias(q, k, (w, strength)), None, past=0)
    block = scores.block(scores.weights, every_token, every_token)[0]

    queries = q[0].transpose(0, 1)
    keys = k[0].repeat_interleave(2, 1).transpose(0, 1)
    mirrored = -2 * (queries @ direction)[:, :, None] * (keys @ direction)[:, None] / 8**0.5
    index = torch.arange(length)
    is_odd = (index[:, None] - index) % 2 == 1
    expected = torch.where(is_odd, mirrored, 0.0).tril()
    assert_close(block.tril(), expected, bounds.ATTENTION)


def test_decay_after_many_tokens_is_as_exact_as_at_first() -> None:
    """c falls to -11,000. In float32 its differences of 1e-4 would be lost."""
    gates = torch.full((1, 16_384, 1, 1), -0.7, dtype=torch.float64)
    decay = Decay(gates.cumsum(1))
    first_tokens = slice(0, 8)
    last_tokens = slice(16_376, 16_384)
    near = decay.block(decay.weights, first_tokens, first_tokens)
    far = decay.block(decay.weights, last_tokens, last_tokens)
    assert_close(far, near, bounds.DEFINITION)


def test_every_step_clips_the_phases_of_pope() -> None:
    """The engine clips the master weight. Clipping in the forward pass would leave a phase at a bound without a gradient."""
    model = random_model(encoding="pope", num_layers=1)
    delta = model.get_parameter("blocks.0.attention.token_features.delta")
    assert spec_of(delta).bounds == (-2 * math.pi, 0.0)


def initial_phases(encoding: str) -> Tensor:
    name = "blocks.0.attention.token_features.delta"
    shape = SHAPE | {"num_layers": 1, "hidden_size": 256, "num_heads": 16, "num_kv_heads": 16}
    model = build_model(ModelConfig(**shape | {"encoding": encoding}))
    return initial_weight(name, model.get_parameter(name), 0.02, 0)


def test_phases_of_pope_start_at_zero() -> None:
    assert not initial_phases("pope").any()


def test_phases_of_pope_uniform_start_anywhere() -> None:
    phases = initial_phases("pope_uniform")
    assert -2 * math.pi < phases.min() < -6
    assert -0.3 < phases.max() < 0
    assert abs(phases.mean() + math.pi) < 0.6


def test_selective_rope_needs_a_multiple_of_the_heads() -> None:
    with pytest.raises(ValueError, match="hidden_size 30 is not a multiple of num_kv_heads 4: encoding selective_rope"):
        ModelConfig(**SHAPE | {"encoding": "selective_rope", "hidden_size": 30, "head_dim": 8})


def test_nan_scores_stay_nan() -> None:
    """An index made from NaN would crash the process, and a GPU's context, before the run can report divergence."""
    model = random_model(encoding="cope", num_layers=1)
    model.embedding.weight.data[0] = math.nan
    assert model(torch.zeros(1, 5, dtype=torch.long), torch.arange(5)[None]).isnan().all()
