"""Layers with different encodings and windows (model.layers)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import attend
from megatape.attention.backend import DocumentStarts
from megatape.attention.bias import ScoreBias
from megatape.attention.rotation import PositionState, rotate_qk
from megatape.attention.windows import visible
from megatape.encodings.cope import CopeBias
from megatape.model.attention import Attention
from megatape.model.recorded_streams import recorded_streams
from megatape.model.transformer import Transformer
from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close, relative_difference
from tests.helpers.models.packed_documents import assert_documents_are_independent
from tests.helpers.models.small_models import random_model, tokens_and_positions

pytestmark = pytest.mark.numerics

# Longer than two chunks of PaTH and than a block of attention
LENGTH = 150
MIXTURES = (
    "tape, rope@9*2",
    "rope@9*2, nope",
    "tape@9, nope, rope",
    "rope@40, alibi, fox@9",
    "tape_fox@9, rope, fox",
    "path@70, t5@9, nope",
    "pope, cope@30, nope@9",
    "selective_rope@9, xpos, nope",
    "rope@9, repo, rope_conv",
    "grape_ap@9, kerple_log, nope",
)


def masked_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: PositionState | None,
    bias: ScoreBias | None,
    document_starts: DocumentStarts,
    averages_state: bool,
    window: int | None,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention, masking all pairs of tokens at once."""
    batch, length, num_heads, _ = q.shape
    first = torch.zeros(batch, length, dtype=torch.long)
    if document_starts is not None:
        first = document_starts
    if window is not None:
        first = torch.maximum(first, torch.arange(length) - window + 1)
    q, k = rotate_qk(q, k, state)
    groups = num_heads // k.shape[2]
    scores = torch.einsum("bihr,bjhr->bhij", q, k.repeat_interleave(groups, 2)) * q.shape[-1] ** -0.5
    if bias is not None:
        everything = slice(0, length)
        scores = scores + bias.block(bias.weights, everything, everything)
    weights = scores.masked_fill(~visible(first)[:, None], -torch.inf).softmax(-1)

    def average(values: Tensor) -> Tensor:
        return torch.einsum("bhij,bjhr->bihr", weights, values.repeat_interleave(groups, 2))

    if not averages_state:
        return average(v), None
    assert state is not None
    return average(v), average(state.tensor(k.shape[2]))


def with_attention(model: Transformer, attention: Any) -> Transformer:
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attention
            module.attend_in_training = attention
    return model


def longer_model(**changes: Any) -> Transformer:
    model = random_model(max_positions=256, num_kv_heads=2, **changes)
    straighten_cope(model)
    return model


def straighten_cope(model: Transformer) -> None:
    """Make CoPE's tables linear in the position.

    The gradient of an interpolated table jumps at whole positions. Two ways of computing a position may round it to different
    sides of a whole number, and would then get different gradients. A linear table has no jumps.
    """
    for module in model.modules():
        if isinstance(module, CopeBias):
            first, second = module.embedding.data[:, :2].unbind(1)
            share = torch.linspace(0, 1, module.embedding.shape[1])
            module.embedding.data.copy_(torch.lerp(first[:, None], second[:, None], share))


# Two layers of each kind: the second layer of TAPE reads the state that the first one has updated.
CASES: list[dict[str, Any]] = [{"layers": layers, "num_layers": 6} for layers in MIXTURES]


@pytest.mark.parametrize("changes", [*CASES, {"layers": "rope@9", "attention_scale": "log_n"}], ids=str)
def test_mixtures_equal_masks_over_all_pairs(changes: dict[str, Any]) -> None:
    """Logits and gradients. Fails if a window hides another key, or if a layer reads another encoding's state."""
    inputs = tokens_and_positions(length=LENGTH)
    model = longer_model(**changes)
    reference = with_attention(longer_model(**changes), masked_attend)
    logits = model(*inputs)
    expected = reference(*inputs)
    assert_close(logits, expected, bounds.LOGITS)
    logits.sin().sum().backward()
    expected.sin().sum().backward()
    for (name, weight), reference_weight in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (weight.grad is None) == (reference_weight.grad is None), name
        if weight.grad is not None:
            assert reference_weight.grad is not None
            assert_close(weight.grad, reference_weight.grad, bounds.PACKED_GRADIENTS, what=name)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_pattern_of_one_encoding_is_the_plain_model(encoding: str) -> None:
    """A window spanning all tokens changes nothing, either. A shorter one changes the tokens beyond it, but no earlier ones."""
    inputs = tokens_and_positions(length=40)
    model = random_model(encoding=encoding)
    expected = model(*inputs)
    for layers in (encoding, f"{encoding}@40"):
        equal = random_model(layers=layers)
        assert [name for name, _ in equal.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert torch.equal(equal(*inputs), expected)
    windowed = random_model(layers=f"{encoding}@9")(*inputs)
    assert_close(windowed[:, :9], expected[:, :9], bounds.LOGITS)
    assert relative_difference(windowed[:, 9:], expected[:, 9:]) > 1e-3


@pytest.mark.parametrize(
    ("layers", "setting"),
    [("tape, nope", {"encoding": "tape", "nope_every": 2}), ("rope@9", {"encoding": "rope", "sliding_window": 9})],
)
def test_earlier_settings_are_patterns(layers: str, setting: dict[str, Any]) -> None:
    inputs = tokens_and_positions()
    assert torch.equal(random_model(num_layers=4, layers=layers)(*inputs), random_model(num_layers=4, **setting)(*inputs))


def test_the_state_passes_through_layers_that_do_not_read_it() -> None:
    """RoPE's layers rotate by the initial angles of TAPE's state, leaving the state as it is."""
    model = random_model(num_layers=4, layers="tape, rope@9")
    inputs = tokens_and_positions()
    with recorded_streams(model) as streams:
        model(*inputs)
    states = [e.detach() for _, e in streams if e is not None]
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[2], states[3])
    assert float((states[2] - states[1]).abs().max()) > 1e-3
    model(*inputs).square().sum().backward()
    dead = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert dead == [f"blocks.2.position.{part}" for part in ("gain", "content", "up", "down")]


def test_fresh_tape_with_rope_is_rope() -> None:
    """TAPE starts as RoPE, so an untrained mixture is RoPE with the same windows."""
    rope = random_model(num_layers=8, layers="rope, rope@9*3")
    mixture = random_model(num_layers=8, layers="tape, rope@9*3")
    for block in mixture.blocks:
        if block.position is not None:
            block.position.gain.data.zero_()
            block.position.up.data.zero_()
    mixture.load_state_dict(rope.state_dict(), strict=False)
    assert_close(mixture(*tokens_and_positions()), rope(*tokens_and_positions()), bounds.LOGITS)


@pytest.mark.parametrize("layers", MIXTURES)
def test_packed_documents_are_independent(layers: str) -> None:
    model = random_model(layers=layers, num_layers=6, max_positions=256)
    names = [name for name, weight in model.named_parameters() if name.startswith("blocks.1.") and weight.requires_grad]
    assert_documents_are_independent(model, [0, 7, 60], names)


def test_attention_gets_no_window_of_all_tokens() -> None:
    """Short samples use the backend for full attention, regardless of the model's window."""
    seen = []

    def recorded(*args: Any, window: int | None, **options: Any) -> Any:
        seen.append(window)
        return attend(*args, window=window, backends=("sdpa",), **options)

    model = with_attention(random_model(layers="rope@40"), recorded)
    model(*tokens_and_positions(length=40))
    assert seen == [40, 40, 40]
