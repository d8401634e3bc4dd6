"""TAPE's defining properties: starting as rotary attention, and depending on position differences only."""

from typing import Any

import pytest
import torch

from megatape.attention.rotation import PositionState, rotate
from megatape.encodings.rope import rotary_state
from megatape.model.recorded_streams import recorded_streams
from megatape.model.transformer import Transformer
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.packed_documents import assert_documents_are_independent
from tests.helpers.models.small_models import SHAPE, random_model, tokens_and_positions

pytestmark = pytest.mark.numerics


def load_shared_weights(rope: Transformer, tape: Transformer) -> None:
    """Load a TAPE model's weights, except its position updates, into a RoPE model."""
    rope.load_state_dict({name: tensor for name, tensor in tape.state_dict().items() if ".position." not in name})


def test_fresh_model_gives_the_logits_of_rope() -> None:
    """Gain and W_up start at zero, so the position tensor stays rotary whatever the other weights are."""
    tape = random_model()
    rope = random_model(encoding="rope")
    for block in tape.blocks:
        block.position.gain.data.zero_()
        block.position.up.data.zero_()
    load_shared_weights(rope, tape)
    inputs = tokens_and_positions()
    assert_close(tape(*inputs), rope(*inputs), bounds.LOGITS)


def test_trained_position_weights_matter() -> None:
    """The test above would pass if updates did nothing. With random weights they have a large effect."""
    tape = random_model()
    rope = random_model(encoding="rope")
    load_shared_weights(rope, tape)
    inputs = tokens_and_positions()
    assert float((tape(*inputs) - rope(*inputs)).detach().abs().max()) > 1e-2


@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 2}, {"num_heads": 3, "head_dim": 10, "position_size": 5}], ids=str)
def test_logits_do_not_depend_on_the_offset(changes: dict[str, Any]) -> None:
    """Rotation equivariance (paper, section 3.2): an offset changes logits by rounding only, thanks to float64 angles."""
    model = random_model(**changes)
    near = model(*tokens_and_positions())
    far = model(*tokens_and_positions(offset=131_072))
    assert_close(far, near, bounds.OFFSET)


def test_position_states_rotate_with_the_offset() -> None:
    """After every layer, e(offset t) is e(0) rotated by t."""
    model = random_model()
    offset = 1000
    rotation = rotary_state(torch.tensor([[offset]]), 8, 1e4).expand(2, 40, 4, -1)

    with recorded_streams(model) as streams:
        model(*tokens_and_positions())
    with recorded_streams(model) as offset_streams:
        model(*tokens_and_positions(offset=offset))

    for (_, state), (_, offset_state) in zip(streams, offset_streams, strict=True):
        assert state is not None
        assert offset_state is not None
        assert_close(offset_state, rotate(state, rotation), bounds.STATES)


def test_angles_are_computed_in_float64() -> None:
    position = 131_072
    state = rotary_state(torch.tensor([[position]]), 64, 1e4)[0, 0, 0]
    angles = position * 1e4 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    assert_close(state.double(), torch.cat([angles.cos(), angles.sin()]), bounds.ANGLES)


def test_last_update_is_dead_unless_streams_are_recorded() -> None:
    model = random_model()
    model(*tokens_and_positions()).square().sum().backward()
    dead = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert dead == [f"blocks.2.position.{part}" for part in ("gain", "content", "up", "down")]
    with recorded_streams(model) as streams:
        model(*tokens_and_positions())
    (_, before), (_, after) = streams[-2:]
    assert before is not None
    assert after is not None
    assert float((after - before).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("encoding", ["tape", "rope"])
def test_packed_documents_are_independent(encoding: str) -> None:
    model = random_model(encoding=encoding)
    assert_documents_are_independent(model, [0, 7, 90, 140, 150], ["blocks.0.attention.key.weight"])


def test_update_equals_the_equations() -> None:
    """Both updates are written out with grouped queries: e_l += sum of g_h (A_h e_l) over the group, then the feed-forward.

    The feed-forward update expands to I channels and contracts again, in the authors' order.
    """
    update: Any = random_model(num_kv_heads=2).blocks[0].position
    generator = torch.Generator().manual_seed(2)
    e = torch.randn(2, 5, 2, 8, generator=generator)
    attended_state = torch.randn(2, 5, 4, 8, generator=generator)
    m = torch.randn(2, 5, 32, generator=generator)
    initial = torch.randn(2, 5, 1, 8, generator=generator)
    gained = update.gain[:, None] * attended_state
    attended = e + torch.stack([gained[:, :, :2].sum(2), gained[:, :, 2:].sum(2)], dim=2)
    active = torch.nn.functional.silu(m @ update.content.T)
    expanded = torch.einsum("il,bnlr->bnir", update.up, attended)
    expected = attended + torch.einsum("li,bni,bnir->bnlr", update.down, active, expanded)

    updated = update(PositionState(initial, e - initial), attended_state, m)

    assert_close(updated.tensor(2), expected, bounds.UPDATE)


def test_shape_of_the_state() -> None:
    model = random_model(num_kv_heads=2)
    with recorded_streams(model) as streams:
        model(*tokens_and_positions(3, 11))
    shapes = [tuple(e.shape) for _, e in streams if e is not None]
    assert shapes == [(3, 11, 2, SHAPE["hidden_size"] // SHAPE["num_heads"])] * 3
