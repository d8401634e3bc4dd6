"""Defining properties of TAPE: it starts as rotary attention, and only differences of positions matter."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from megatape.attention.rotation import PositionState, rotate
from megatape.encodings.rope import rotary_state
from megatape.model.recorded_streams import recorded_streams
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.small_models import SHAPE, random_model, tokens_and_positions

pytestmark = pytest.mark.numerics


def test_fresh_model_gives_the_logits_of_rope() -> None:
    """Gain and W_up start at zero, so the position tensor stays rotary whatever the other weights are."""
    tape = random_model()
    rope = random_model(encoding="rope")
    for block in tape.blocks:
        block.position.gain.data.zero_()
        block.position.up.data.zero_()
    shared = {name: tensor for name, tensor in tape.state_dict().items() if ".position." not in name}
    rope.load_state_dict(shared)
    inputs = tokens_and_positions()
    ours = tape(*inputs).detach()
    expected = rope(*inputs).detach()
    assert_close(ours, expected, bounds.LOGITS)


def test_trained_position_weights_matter() -> None:
    """The test above would pass if updates did nothing. With random weights they have a large effect."""
    tape = random_model()
    rope = random_model(encoding="rope")
    rope.load_state_dict({name: tensor for name, tensor in tape.state_dict().items() if ".position." not in name})
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
    states: dict[int, list[tuple[Tensor, Tensor | None]]] = {}
    for start in (0, offset):
        with recorded_streams(model) as states[start]:
            model(*tokens_and_positions(offset=start))
    rotate_qk = rotary_state(torch.tensor([[offset]]), 8, 1e4).expand(2, 40, 4, -1)
    for (_, here), (_, there) in zip(states[0], states[offset], strict=True):
        assert here is not None
        assert there is not None
        expected = rotate(here, rotate_qk)
        assert_close(there, expected, bounds.STATES)


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
    assert float((after - before).abs().max()) > 1e-3


def test_documents_packed_together_are_as_if_alone() -> None:
    """With restarting positions and masked boundaries, packing changes neither logits nor gradients of a document."""
    for encoding in ("tape", "rope"):
        model: Any = random_model(encoding=encoding)
        tokens, _ = tokens_and_positions(batch=1, length=150)
        borders = [0, 7, 90, 140, 150]
        pieces = [tokens[:, start:stop] for start, stop in itertools.pairwise(borders)]
        positions = torch.cat([torch.arange(piece.shape[1]) for piece in pieces])[None]
        document_starts = torch.cat(
            [torch.full((piece.shape[1],), start) for start, piece in zip(borders, pieces, strict=False)]
        )[None]
        alone = torch.cat([model(piece, torch.arange(piece.shape[1])[None]) for piece in pieces], dim=1)
        packed = model(tokens, positions, document_starts)
        assert_close(packed, alone, bounds.LOGITS)
        gradients = [
            torch.autograd.grad(logits.square().sum(), model.blocks[0].attention.key.weight)[0] for logits in (packed, alone)
        ]
        assert_close(gradients[0], gradients[1], bounds.PACKED_GRADIENTS)


def test_update_equals_the_equations() -> None:
    """Both updates are written out with grouped queries: e_l += sum of g_h (A_h e_l) over the group, then the feed-forward.

    The feed-forward update expands to I channels and contracts again, in the authors' order.
    """
    update: Any = random_model(num_kv_heads=2).blocks[0].position
    generator = torch.Generator().manual_seed(2)
    e, attended_state, m = (torch.randn(shape, generator=generator) for shape in ((2, 5, 2, 8), (2, 5, 4, 8), (2, 5, 32)))
    expected = e + torch.stack(
        [sum(update.gain[head] * attended_state[:, :, head] for head in group) for group in ((0, 1), (2, 3))],
        dim=2,
    )
    active = torch.nn.functional.silu(m @ update.content.T)
    expanded = torch.einsum("il,bnlr->bnir", update.up, expected)
    expected = expected + torch.einsum("li,bni,bnir->bnlr", update.down, active, expanded)
    initial = torch.randn(2, 5, 1, 8, generator=generator)
    found = update(PositionState(initial, e - initial), attended_state, m)
    assert_close(found.tensor(2), expected, bounds.UPDATE)


def test_shape_of_the_state() -> None:
    model = random_model(num_kv_heads=2)
    with recorded_streams(model) as streams:
        model(*tokens_and_positions(3, 11))
    assert [tuple(e.shape) for _, e in streams if e is not None] == [(3, 11, 2, SHAPE["hidden_size"] // SHAPE["num_heads"])] * 3
