"""Rotation with PyTorch's operators."""

import pytest
import torch

from megatape.attention.rotation import PositionState, rotate_qk

# Shapes as in model/transformer.py
B = 2
N = 3
H = 4
L = 2
R = 6


@pytest.mark.parametrize("width", [R, 2 * R])
@pytest.mark.parametrize("moved", [True, False])
def test_gradients_are_those_of_finite_differences(width: int, moved: bool) -> None:
    """Grouped heads in float64, for both terms of e: an export has one term, a training model has two."""
    torch.manual_seed(0)
    q, k = (torch.randn(B, N, heads, R, dtype=torch.float64, requires_grad=True) for heads in (H, L))
    initial = torch.randn(B, N, 1 if moved else L, width, dtype=torch.float64, requires_grad=not moved)
    delta = torch.randn(B, N, L, width, dtype=torch.float64, requires_grad=True) if moved else None
    terms = (q, k, initial) if delta is None else (q, k, initial, delta)
    torch.autograd.gradcheck(lambda q, k, *e: rotate_qk(q, k, PositionState(*e)), terms)


@pytest.mark.parametrize("gradients", [False, True])
def test_it_compiles_into_one_graph(gradients: bool) -> None:
    """Exported models compile it. With other arguments torch.compile can fail if gradients are off."""
    q, k = (torch.randn(B, N, heads, R, requires_grad=True) for heads in (H, L))
    state = PositionState(torch.randn(B, N, 1, R))
    with torch.set_grad_enabled(gradients):
        compiled = torch.compile(rotate_qk, fullgraph=True, backend="eager")(q, k, state)
        assert all(map(torch.equal, compiled, rotate_qk(q, k, state)))
