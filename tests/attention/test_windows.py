"""Attention within a window, by every backend computing it on a CPU, against the plain formula."""

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import attend, get_backend, select_backend
from megatape.attention.backend import AttentionRequirements
from megatape.attention.backends.blocked import Blocked
from megatape.attention.bias import DistanceBias
from megatape.attention.blocked.row_blocks import BLOCK
from megatape.attention.rotation import PositionState
from megatape.attention.windows import num_pairs_in_window
from megatape.registry import BACKENDS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models import biased_attention
from tests.helpers.models.attention import initial_state, inputs, plain, random_document_starts

pytestmark = [pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"), pytest.mark.numerics]

LENGTH = 2 * BLOCK + 44
SHAPE = (2, LENGTH, 4, 2, 8)
# Below, at and above a block's rows, and the longest one hiding a token
WINDOWS = [2, BLOCK - 1, BLOCK, BLOCK + 1, LENGTH - 1]


def starts_of(window: int, masked: bool) -> tuple[Tensor | None, Tensor]:
    """Return the document starts, and the first token seen by each token."""
    document_starts = None
    first = torch.zeros(2, LENGTH, dtype=torch.long)
    if masked:
        document_starts = random_document_starts(2, LENGTH)
        first = document_starts
    return document_starts, torch.maximum(first, torch.arange(LENGTH) - window + 1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("backend", ["blocked", "flex"])
def test_windows_equal_the_formula(backend: str, window: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content and state, forward and backward. Fails if a block skips a key in the window, or shows one before it."""
    # torch refuses gradients on a CPU, although the uncompiled code computes them.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    ours = inputs(SHAPE)
    exact = [tensor.detach().double().requires_grad_() for tensor in ours]
    document_starts, first = starts_of(window, masked)

    q, k, v, delta = ours
    state = PositionState(initial_state(delta), delta)
    found = get_backend(backend).attend(q, k, v, state, None, document_starts, True, window)
    q, k, v, delta = exact
    expected = plain(q, k, v, initial_state(delta).double() + delta, first)

    for ours_part, exact_part in zip(found, expected, strict=True):
        assert ours_part is not None
        assert_close(ours_part, exact_part, bounds.ATTENTION, floor=1.0)
    gradients = torch.autograd.grad([part.sin().sum() for part in found if part is not None], ours)
    exact_gradients = torch.autograd.grad([part.sin().sum() for part in expected], exact)
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        assert_close(gradient, exact_gradient, bounds.ATTENTION, floor=1.0)


def test_a_window_of_one_token_is_the_token() -> None:
    q, k, v, _ = inputs(SHAPE)
    content, _ = attend(q, k, v, window=1)
    assert torch.equal(content, v.repeat_interleave(2, dim=2))


@pytest.mark.parametrize("window", [3, BLOCK + 30])
def test_a_bias_within_a_window(window: int) -> None:
    exact, make = biased_attention.inputs(SHAPE, "pairs")
    bias = make(exact[3:])
    numbers = bias.block(bias.weights, slice(0, LENGTH), slice(0, LENGTH))
    document_starts, first = starts_of(window, masked=True)
    q, k, v, *weights = exact
    expected = biased_attention.plain(q, k, v, numbers, first)
    ours = [tensor.detach().float().requires_grad_() for tensor in exact]
    q, k, v, *weights = ours
    found, _ = attend(q, k, v, bias=make(weights), document_starts=document_starts, window=window)
    assert_close(found, expected, bounds.ATTENTION, floor=1.0)
    gradients = torch.autograd.grad(found.sin().sum(), ours)
    exact_gradients = torch.autograd.grad(expected.sin().sum(), exact)
    for gradient, exact_gradient in zip(gradients, exact_gradients, strict=True):
        assert_close(gradient, exact_gradient, bounds.BIAS_GRADIENTS, floor=1.0)


@pytest.mark.parametrize("window", [LENGTH, LENGTH + 1])
def test_a_window_of_all_tokens_changes_no_bit(window: int) -> None:
    q, k, v, delta = inputs(SHAPE)
    state = PositionState(initial_state(delta), delta)
    bias = DistanceBias(torch.randn(4, LENGTH, generator=torch.Generator().manual_seed(0)))
    for averages_state, by_distance in ((True, None), (False, bias)):
        full = attend(q, k, v, state=state, bias=by_distance, averages_state=averages_state)
        windowed = attend(q, k, v, state=state, bias=by_distance, averages_state=averages_state, window=window)
        by_blocks = Blocked().attend(q, k, v, state, by_distance, None, averages_state, window)
        assert torch.equal(full[0], windowed[0])
        assert torch.equal(Blocked().attend(q, k, v, state, by_distance, None, averages_state)[0], by_blocks[0])


def test_backends_without_windows_are_not_chosen() -> None:
    """sdpa refuses windows, while all other registered backends compute them."""
    need = AttentionRequirements("cpu", False, "none", 64, torch.float32, masked=False)
    assert select_backend(need) == "sdpa"
    windowed = AttentionRequirements("cpu", False, "none", 64, torch.float32, masked=False, windowed=True)
    assert select_backend(windowed) == "blocked"
    assert get_backend("sdpa").unsupported_reason(windowed) == "computes no attention within a window"
    on_gpu = AttentionRequirements("cuda", True, "none", 64, torch.bfloat16, masked=False, windowed=True)
    supported = [name for name in BACKENDS if get_backend(name).unsupported_reason(on_gpu) is None]
    assert supported == ["flex", "triton", "blocked"]


@pytest.mark.parametrize("window", [1, 3, 9, 10, None])
def test_pairs_are_counted_in_both_directions(window: int | None) -> None:
    index = torch.arange(10)
    is_near = (index - index[:, None]).abs() < (window or 10)
    assert num_pairs_in_window(10, window) == int(is_near.sum())
