"""FlashAttention-4 on a GPU with every tile and option, against the formula in float64.

tests/gpu/test_attention.py compares it with short samples as well, as every other backend.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.backend import AttentionRequirements
from megatape.attention.fa4.tiles import LONG
from megatape.attention.rotation import PositionState
from megatape.attention.windows import starts_in_window
from tests.gpu import GPU
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import relative_difference
from tests.helpers.models.attention import initial_state, inputs, plain, random_document_starts

pytestmark = [*GPU, pytest.mark.numerics]

# Lengths not divisible by a tile. The longer one uses other tiles.
SHORT_LENGTH = 300
LONG_LENGTH = LONG + 260


@dataclass(frozen=True)
class Case:
    """Attention moving the state.

    Attributes:
        head_dim: Head size R.
        length: Tokens per sample N.
        num_heads: Query heads H, for two key/value heads.
        dtype: Data type.
        masked: Whether samples are packed documents.
        window: Number of tokens attended to by each token, or None for all earlier ones.
        deterministic: Whether gradients must repeat bit for bit.
    """

    head_dim: int
    length: int
    num_heads: int = 2
    dtype: torch.dtype = torch.bfloat16
    masked: bool = False
    window: int | None = None
    deterministic: bool = False

    @property
    def requirements(self) -> AttentionRequirements:
        """Return a layer's requirements."""
        return AttentionRequirements(
            "cuda",
            True,
            "none",
            self.head_dim,
            self.dtype,
            self.masked,
            windowed=self.window is not None,
            grouped=self.num_heads > 2,
            deterministic=self.deterministic,
        )


CASES = {
    "64": Case(64, SHORT_LENGTH),
    "64, long": Case(64, LONG_LENGTH),
    "64, long, documents, window, deterministic": Case(64, LONG_LENGTH, masked=True, window=70, deterministic=True),
    "64, float16, groups": Case(64, SHORT_LENGTH, num_heads=6, dtype=torch.float16),
    "128": Case(128, SHORT_LENGTH),
    "128, long": Case(128, LONG_LENGTH),
    "128, documents, window, deterministic, groups": Case(
        128, SHORT_LENGTH, num_heads=6, masked=True, window=70, deterministic=True
    ),
    "32, window": Case(32, SHORT_LENGTH, window=70),
    "112, long, documents": Case(112, LONG_LENGTH, masked=True),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_formula(name: str) -> None:
    case = CASES[name]
    _skip_unless_supported(case)
    arguments = _arguments(case)
    exact = [tensor.detach().double().requires_grad_() for tensor in arguments]
    initial, starts = _state_and_starts(case)
    outputs = _run(case, arguments, initial, starts)

    first_visible = starts
    if first_visible is None:
        first_visible = torch.zeros(1, case.length, dtype=torch.long, device="cuda")
    if case.window is not None:
        first_visible = starts_in_window(arguments[0], first_visible, case.window)
    q, k, v, delta = exact
    expected = plain(q, k, v, initial.double() + delta, first_visible)

    gradients = _gradients(outputs, arguments)
    exact_gradients = _gradients(expected, exact)
    for ours, theirs in zip((*outputs, *gradients), (*expected, *exact_gradients), strict=True):
        assert relative_difference(ours, theirs, floor=1e-3) < bounds.GPU_KERNEL[torch.bfloat16]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_deterministic_gradients_repeat(head_dim: int, masked: bool) -> None:
    """Many blocks of keys add to the gradient of one query, so the order of the sums matters."""
    case = Case(head_dim, LONG_LENGTH, num_heads=8, masked=masked, deterministic=True)
    _skip_unless_supported(case)
    arguments = _arguments(case)
    initial, starts = _state_and_starts(case)
    runs = []
    for _ in range(3):
        outputs = _run(case, arguments, initial, starts)
        runs.append([*outputs, *_gradients(outputs, arguments)])
    for other in runs[1:]:
        for result, again in zip(runs[0], other, strict=True):
            assert torch.equal(result, again)


def _skip_unless_supported(case: Case) -> None:
    reason = get_backend("fa4").unsupported_reason(case.requirements)
    if reason is not None:
        pytest.skip(f"fa4 {reason}")


def _arguments(case: Case) -> list[Tensor]:
    """Return queries, keys, values and e's second term."""
    drawn = inputs((1, case.length, case.num_heads, 2, case.head_dim), case.dtype)
    return [tensor.detach().cuda().requires_grad_() for tensor in drawn]


def _state_and_starts(case: Case) -> tuple[Tensor, Tensor | None]:
    """Return e's first term, and the document starts if there are documents."""
    initial = initial_state(torch.empty(1, case.length, 1, case.head_dim)).cuda()
    if not case.masked:
        return initial, None
    # The first one is longer than any tile, the others are not.
    starts = random_document_starts(2, case.length)[1:]
    return initial, starts.cuda()


def _run(case: Case, arguments: list[Tensor], initial: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    q, k, v, delta = arguments
    backend = get_backend("fa4", rotation_by_kernel=True, deterministic=case.deterministic)
    content, state = backend.attend(q, k, v, PositionState(initial, delta), None, starts, True, case.window)
    assert state is not None
    return content, state


def _gradients(outputs: tuple[Tensor, Tensor], arguments: list[Tensor]) -> tuple[Tensor, ...]:
    loss = torch.stack([output.double().sin().sum() for output in outputs]).sum()
    return torch.autograd.grad(loss, arguments)
