"""Rotation with PyTorch's operators."""

import pytest
import torch
from torch import Tensor

from megatape.attention.rotation import PositionState, rotate_qk

# Shapes as in model/transformer.py
B = 2
N = 3
H = 4
L = 2
R = 6


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("width", [R, 2 * R])
@pytest.mark.parametrize("moved", [True, False])
def test_gradients_are_those_of_finite_differences(width: int, moved: bool) -> None:
    """Grouped heads in float64, for both terms of e: an export has one term, a training model has two."""
    torch.manual_seed(0)
    arguments = [draw(B, N, H, R), draw(B, N, L, R)]
    if moved:
        arguments += [draw(B, N, 1, width).requires_grad_(False), draw(B, N, L, width)]
    else:
        arguments.append(draw(B, N, L, width))
    torch.autograd.gradcheck(lambda q, k, *terms: rotate_qk(q, k, PositionState(*terms)), arguments)


@pytest.mark.parametrize("gradients", [False, True])
def test_rotation_compiles_into_one_graph(gradients: bool) -> None:
    """Exported models compile it. With other arguments torch.compile can fail if gradients are off."""
    q = draw(B, N, H, R, dtype=torch.float32)
    k = draw(B, N, L, R, dtype=torch.float32)
    state = PositionState(torch.randn(B, N, 1, R))
    with torch.set_grad_enabled(gradients):
        rotated_q, rotated_k = torch.compile(rotate_qk, fullgraph=True, backend="eager")(q, k, state)
        expected_q, expected_k = rotate_qk(q, k, state)
        assert torch.equal(rotated_q, expected_q)
        assert torch.equal(rotated_k, expected_k)
