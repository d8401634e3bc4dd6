"""Rotation by the kernels, alone and joined with [v | e], compared with PyTorch's operators in float64."""

from typing import NamedTuple

import torch

from megatape.attention import rotating_backend
from megatape.attention.kernels.rotation import KernelRotation
from megatape.attention.rotation import PositionState, rotate
from tests.helpers.models.attention import initial_state, inputs
from tests.kernels.interpreted.comparison import compare, in_float64, relative_norm
from tests.kernels.launches import Shape


class RotationCase(NamedTuple):
    """Rotating queries and keys.

    Attributes:
        shape: B, N, H, L, R.
        dtype: Data type for queries, keys and the second term of e.
        delta: Whether e has a second term.
        averages_state: Whether attention averages e.
    """

    shape: Shape
    dtype: torch.dtype
    delta: bool
    averages_state: bool


ROTATIONS = [
    RotationCase((2, 70, 4, 2, 8), torch.float32, delta=True, averages_state=True),
    RotationCase((1, 7, 3, 3, 20), torch.float32, delta=True, averages_state=False),
    RotationCase((2, 70, 2, 1, 16), torch.float32, delta=False, averages_state=True),
    RotationCase((1, 7, 2, 2, 4), torch.float32, delta=False, averages_state=False),
    RotationCase((1, 40, 4, 2, 32), torch.bfloat16, delta=True, averages_state=True),
]


def rotation_differences(case: RotationCase) -> dict[str, float]:
    """Compare heads rotated by the kernels with PyTorch's operators in float64."""
    q, k, _, delta = inputs(case.shape, case.dtype)
    arguments = {"q": q, "k": k}
    initial = initial_state(delta)
    if case.delta:
        arguments["delta"] = delta
    else:
        initial = initial[:1]  # all samples may share it
    exact = in_float64(arguments)
    e = initial.double().expand(*delta.shape)
    if case.delta:
        e = e + exact["delta"]

    rotated_q, rotated_k, state = KernelRotation.apply(q, k, initial, arguments.get("delta"), case.averages_state)

    outputs = {"q rotated": rotated_q, "k rotated": rotated_k}
    expected = {"q rotated": rotate(exact["q"], e), "k rotated": rotate(exact["k"], e)}
    if case.averages_state:
        outputs["e"] = state
        expected["e"] = e
    else:
        assert state is None
    return compare(outputs, expected, arguments, exact)


def joined_rotation_differences(case: RotationCase) -> dict[str, float]:
    """Compare [v | e], and gradients through it and through rotated heads, with PyTorch's operators in float64."""
    q, k, v, delta = inputs(case.shape, case.dtype)
    arguments = {"q": q, "k": k, "v": v}
    initial = initial_state(delta)
    if case.delta:
        arguments["delta"] = delta
    state = PositionState(initial, arguments.get("delta"))
    exact = in_float64(arguments)
    e = initial.double().expand(*delta.shape)
    if case.delta:
        e = e + exact["delta"]
    expected = (rotate(exact["q"], e), rotate(exact["k"], e), torch.cat([exact["v"], e], dim=-1))

    with torch.no_grad():
        results = rotating_backend.rotated_with_values(q, k, v, state, True, by_kernel=True)
        d_results = [result.double().cos().to(case.dtype) for result in results]
        d_rotated_q, d_rotated_k, d_values = d_results
        gradients = rotating_backend.gradients_with_values(q, k, state, d_rotated_q, d_rotated_k, d_values, by_kernel=True)
    torch.autograd.backward(expected, [d_result.double() for d_result in d_results])

    differences = {}
    for name, result, reference in zip(("q rotated", "k rotated", "[v | e]"), results, expected, strict=True):
        differences[name] = relative_norm(result, reference)
    for name, gradient in zip(("q", "k", "v", "delta"), gradients, strict=True):
        if name in exact:
            expected_gradient = exact[name].grad
            assert gradient is not None
            assert expected_gradient is not None
            differences[f"d {name}"] = relative_norm(gradient, expected_gradient)
        else:
            assert gradient is None
    return differences
