"""FlashAttention-4's backend with a stand-in for its package. tests/gpu/test_fa4.py tests the package's kernels."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import backends_by_priority, check_forced_backend, get_backend, select_backend
from megatape.attention.backend import AttentionRequirements
from megatape.attention.fa4.tiles import BACKWARD_64_X_96, BACKWARD_64_X_128, BACKWARD_96_X_128, LONG
from megatape.attention.rotation import PositionState
from megatape.attention.windows import starts_in_window
from megatape.errors import UserError
from megatape.registry import AUTO
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.attention import initial_state, inputs, plain, random_document_starts, widths
from tests.helpers.models.fa4_stand_in import Interface, install, pretend_gpu

# B, N, H, L, R: equal numbers of heads, and groups of three
SHAPES = [(2, 40, 4, 4, 8), (2, 60, 6, 2, 16)]
HOPPER = (9, 0)
# The most demanding layers in a TAPE model
TAPE = AttentionRequirements("cuda", True, "none", 64, torch.bfloat16, masked=False)


@pytest.fixture(autouse=True)
def interface(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Interface:
    select_backend.cache_clear()
    return install(monkeypatch, tmp_path)


@pytest.mark.numerics
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moving_equals_the_formula(shape: tuple[int, ...], masked: bool, window: int | None) -> None:
    """Values and all four gradients are compared with the formula in float64."""
    arguments = inputs(shape)
    exact_arguments = [tensor.detach().double().requires_grad_() for tensor in arguments]
    document_starts = random_document_starts(*shape[:2]) if masked else None

    q, k, v, delta = arguments
    initial = initial_state(delta)
    content, attended_state = get_backend("fa4").attend(
        q, k, v, PositionState(initial, delta), None, document_starts, True, window
    )
    assert attended_state is not None
    (content.sin().sum() + attended_state.square().sum()).backward()

    starts = torch.zeros(shape[:2], dtype=torch.long) if document_starts is None else document_starts
    if window is not None:
        starts = starts_in_window(q, starts, window)
    q, k, v, delta = exact_arguments
    expected_content, expected_state = plain(q, k, v, initial.double() + delta, starts)
    (expected_content.sin().sum() + expected_state.square().sum()).backward()

    assert_close(content, expected_content, bounds.ATTENTION, floor=1e-3)
    assert_close(attended_state, expected_state, bounds.ATTENTION, floor=1e-3)
    for argument, exact in zip(arguments, exact_arguments, strict=True):
        assert argument.grad is not None
        assert exact.grad is not None
        assert_close(argument.grad, exact.grad, bounds.ATTENTION, floor=1e-3)


# Whether there is a state, it has a delta, its width over that of heads, whether attention moves it
STATES = [
    (False, False, 1, False),
    (True, False, 1, False),
    (True, True, 1, False),
    (True, False, 1, True),
    (True, True, 2, True),
]


@pytest.mark.numerics
@pytest.mark.parametrize(("has_state", "has_delta", "relative_width", "averages_state"), STATES)
@pytest.mark.parametrize("num_channels", [4, 2])
def test_every_kind_of_layer_equals_blocks(
    num_channels: int, has_state: bool, has_delta: bool, relative_width: int, averages_state: bool
) -> None:
    """Covers plain attention, rotary attention, TAPE's first layer, and an ablation whose state is wider than heads."""

    def outputs_and_gradients(backend: str) -> list[Tensor]:
        q, k, v, delta = widths(2, 24, 4, num_channels, 8, relative_width * 8)
        trained = [q, k, v]
        state = None
        if has_state:
            state = PositionState(initial_state(delta), delta if has_delta else None)
        if has_delta:
            trained.append(delta)
        outputs = get_backend(backend).attend(q, k, v, state, None, random_document_starts(2, 24), averages_state)
        existing = [output for output in outputs if output is not None]
        assert len(existing) == 1 + averages_state
        gradients = torch.autograd.grad([output.sin().sum() for output in existing], trained)
        return [*existing, *gradients]

    for result, expected in zip(outputs_and_gradients("fa4"), outputs_and_gradients("blocked"), strict=True):
        assert_close(result, expected, bounds.ATTENTION, floor=1e-3)


# R, N -> tile of the forward pass, tile of the backward pass
TILES = {
    (64, 64): ((128, 128), BACKWARD_64_X_128),
    (64, LONG + 1): ((128, 128), BACKWARD_96_X_128),
    (32, LONG + 1): ((128, 128), BACKWARD_64_X_128),
    (128, 64): ((128, 112), BACKWARD_64_X_96),
    (128, LONG + 1): ((128, 80), BACKWARD_64_X_96),
}


@pytest.mark.parametrize(("head_dim", "length"), TILES)
def test_wide_values_have_tiles_of_their_own(interface: Interface, head_dim: int, length: int) -> None:
    """The package's function choosing tiles is only replaced during the call."""
    own_choice = interface._tile_size_bwd_sm90
    forward_tile, backward_tile = TILES[head_dim, length]
    _run((1, length, 1, 1, head_dim))
    assert interface.forward_options == [(forward_tile, True, True)]
    (tile,) = interface.backward_tiles
    assert tile is not None
    chosen = {name: getattr(tile, name) for name in backward_tile}
    assert chosen == backward_tile
    assert interface._tile_size_bwd_sm90 == own_choice


def test_the_package_chooses_other_tiles(interface: Interface, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own choice fits values as wide as queries, and Blackwell, whose kernels have no such argument."""
    _run((1, 16, 2, 2, 64), averages_state=False)
    pretend_gpu(monkeypatch, (10, 0))
    _run((1, 16, 2, 2, 64))
    assert interface.forward_options == [(None, None, None)] * 2
    assert interface.backward_tiles == [None, None]


def test_an_error_restores_the_choice_of_tiles(interface: Interface, monkeypatch: pytest.MonkeyPatch) -> None:
    own_choice = interface._tile_size_bwd_sm90

    def failing(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("out of resource")

    monkeypatch.setattr(interface, "_flash_attn_bwd", failing)
    with pytest.raises(RuntimeError, match="out of resource"):
        _run((1, 16, 2, 2, 64))
    assert interface._tile_size_bwd_sm90 == own_choice


@pytest.mark.parametrize("deterministic", [False, True])
def test_deterministic_gradients_are_asked_for(interface: Interface, deterministic: bool) -> None:
    q, k, v, delta = inputs((1, 16, 2, 2, 8))
    state = PositionState(initial_state(delta), delta)
    content, _ = get_backend("fa4", deterministic=deterministic).attend(q, k, v, state, None, None, True)
    content.sum().backward()
    assert interface.deterministic == [deterministic]


def test_the_backward_pass_keeps_no_rotated_tensors() -> None:
    """The backward pass keeps the arguments, the result of both halves and one float32 number for each query and head."""
    from megatape.accounting.memory.saved_tensors import record_saved

    q, k, v, delta = inputs((2, 16, 4, 2, 8), torch.bfloat16)
    initial = initial_state(delta.float())
    with record_saved(exclude=[]) as saved:
        get_backend("fa4").attend(q, k, v, PositionState(initial, delta), None, None, True)
    num_tokens = 2 * 16
    arguments = 2 * 8 * num_tokens * (4 + 2 + 2 + 2) + 4 * 8 * num_tokens
    results = 2 * 16 * num_tokens * 4 + 4 * num_tokens * 4
    assert saved.bytes == arguments + results


@pytest.mark.parametrize("masked", [False, True])
def test_attention_compiles_into_one_graph(masked: bool) -> None:
    """Compiling changes neither results nor gradients, not even in a batch with other document lengths."""
    backend = get_backend("fa4")

    def run(q: Tensor, k: Tensor, v: Tensor, initial: Tensor, delta: Tensor, starts: Tensor | None) -> Tensor:
        content, state = backend.attend(q, k, v, PositionState(initial, delta), None, starts, True)
        assert state is not None
        return content * state

    functions: list[Callable[..., Tensor]] = [run, torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=False)]
    for document_length in (5, 7):
        arguments = inputs((2, 16, 4, 2, 8))
        starts = torch.arange(16).expand(2, 16) // document_length * document_length if masked else None
        initial = initial_state(arguments[3])
        results = []
        for function in functions:
            out = function(*arguments[:3], initial, arguments[3], starts)
            results.append([out, *torch.autograd.grad(out.sin().sum(), arguments)])
        for result, expected in zip(*results, strict=True):
            assert torch.equal(result, expected)


def test_operator_is_consistent() -> None:
    """The schemas of both operators, and their results on shapes alone, agree with their real results."""
    q, k, v, delta = [tensor.detach() for tensor in inputs((2, 16, 4, 2, 8))]
    initial = initial_state(delta)
    starts = random_document_starts(2, 16)
    for state, document_starts, averages_state in (
        ((None, None), None, False),
        ((initial, delta), starts, True),
    ):
        tensors = (q, k, v, *state, document_starts)
        options = (averages_state, None, False, False)
        torch.library.opcheck(torch.ops.megatape.fa4.default, (*tensors, *options))
        out, log_sum = torch.ops.megatape.fa4.default(*tensors, *options)
        torch.library.opcheck(torch.ops.megatape.fa4_backward.default, (*tensors, out, log_sum, out.cos(), *options))


def test_documents_are_counted_again_after_a_change() -> None:
    """All layers share a batch's lengths, while the loader may be writing the next batch into the same tensor."""
    q, k, v, _ = inputs((1, 16, 2, 2, 8))
    starts = torch.zeros(1, 16, dtype=torch.long)
    for document_length in (16, 4):
        starts.copy_(torch.arange(16) // document_length * document_length)
        content, _ = get_backend("fa4").attend(q, k, v, None, None, starts, False)
        expected, _ = get_backend("blocked").attend(q, k, v, None, None, starts, False)
        assert_close(content, expected, bounds.ATTENTION)


# Reason -> unsupported requirements
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "adds no bias to the scores": {"bias": "distance"},
    "the device is 'cpu'": {"device_type": "cpu"},
    "not in torch.float32": {"dtype": torch.float32},
    "multiple of 8, and model.head_dim is 60": {"head_dim": 60},
    "tiles for a position state with heads of .* and model.head_dim is 96": {"head_dim": 96},
    "values of at most 256 numbers on this GPU, and has 264": {"head_dim": 264, "averages_state": False},
    "ranks of parallel.cp": {"ring": True},
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_unsupported_requirements_have_a_reason(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, HOPPER)
    requirements = replace(TAPE, **UNSUPPORTED[reason])
    with pytest.raises(UserError, match=f"training.attention is fa4, which .*{reason}.*choose auto, or one of "):
        check_forced_backend(requirements, "fa4", "tape")


# Compute capability -> head sizes for moving the state, and for leaving it
BY_CAPABILITY: dict[tuple[int, int] | None, tuple[list[int], list[int]]] = {
    (9, 0): ([64, 128], [64, 128, 256]),
    (10, 0): ([64], [64, 128]),
    (8, 0): ([], []),
    (12, 0): ([], []),
    None: ([64, 128], [64, 128, 256]),  # a machine without a GPU plans for another one's
}


@pytest.mark.parametrize("capability", BY_CAPABILITY, ids=str)
def test_supported_sizes_depend_on_the_gpu(capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, capability)
    backend = get_backend("fa4")
    for averages_state, supported in zip((True, False), BY_CAPABILITY[capability], strict=True):
        layers = [replace(TAPE, averages_state=averages_state, head_dim=head_dim) for head_dim in (64, 128, 256)]
        assert [layer.head_dim for layer in layers if backend.unsupported_reason(layer) is None] == supported


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend_gpu(monkeypatch, HOPPER)
    other = tmp_path / "other"
    other.mkdir()
    install(monkeypatch, other, version="4.0.0b40")
    reason = "was only tried with flash-attn-4 4.0.0b36, and 4.0.0b40 is installed"
    assert get_backend("fa4").unsupported_reason(TAPE) == reason
    assert select_backend(TAPE) == "triton"


class Choice(NamedTuple):
    """Backend chosen by `auto` on a Hopper GPU.

    Attributes:
        backend: Name of the backend.
        changes: Changes to TAPE's requirements.
    """

    backend: str
    changes: dict[str, Any]


CHOICES = [
    Choice("fa4", {}),
    Choice("fa4", {"head_dim": 128}),
    Choice("fa4", {"averages_state": False}),
    Choice("fa4", {"averages_state": False, "head_dim": 128}),
    Choice("triton", {"head_dim": 32}),
    Choice("sdpa", {"dtype": torch.float32}),
    Choice("triton", {"masked": True}),
    Choice("triton", {"windowed": True}),
    Choice("triton", {"grouped": True}),
    Choice("sdpa", {"grouped": True, "head_dim": 128}),
    Choice("triton", {"deterministic": True}),
    Choice("triton", {"deterministic": True, "averages_state": False, "head_dim": 128}),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_auto_uses_it_where_it_was_faster(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, HOPPER)
    assert select_backend(replace(TAPE, **choice.changes)) == choice.backend


@pytest.mark.parametrize("capability", [(10, 0), (8, 0), None], ids=str)
def test_auto_does_not_use_it_on_other_gpus(capability: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """fa4 was measured on Hopper alone, and a machine without a GPU plans for the GPUs that most users have."""
    pretend_gpu(monkeypatch, capability)
    assert "fa4" not in backends_by_priority(AUTO, TAPE)[:2]


def test_a_run_learns_why_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason is only given if the package is installed and the run has a GPU."""
    pretend_gpu(monkeypatch, (8, 0))
    backend = get_backend("fa4")
    reason = "has kernels for GPUs with compute capability 9.0, 10.0 or 10.3, and this one has 8.0"
    assert backend.missed_reason(TAPE) == reason
    assert backend.missed_reason(replace(TAPE, device_type="cpu")) is None
    pretend_gpu(monkeypatch, HOPPER)
    assert backend.missed_reason(TAPE) is None


def _run(shape: tuple[int, ...], averages_state: bool = True) -> None:
    """Run the backend forward and backward."""
    q, k, v, delta = inputs(shape)
    state = PositionState(initial_state(delta), delta)
    content, _ = get_backend("fa4").attend(q, k, v, state, None, None, averages_state)
    content.sum().backward()
