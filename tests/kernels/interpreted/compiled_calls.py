"""Kernels called in a graph of torch.compile, compared with plain calls."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from megatape.attention.attend import get_backend
from megatape.attention.bias import Decay, DistanceBias
from megatape.attention.kernels import head_launches
from megatape.attention.kernels.rotation import KernelRotation
from megatape.attention.rotation import PositionState
from megatape.encodings.kernels.update import fused_update
from tests.helpers.models.attention import initial_state, inputs, random_document_starts
from tests.kernels.interpreted.attention_cases import SQUARE
from tests.kernels.interpreted.comparison import backward, relative_norm


def compiled_differences() -> Iterator[dict[str, float]]:
    """Yield how much results and gradients differ between a call in a graph of torch.compile and a plain call."""
    batch, length, heads, channels, size = shape = (2, 20, 2, 1, 16)
    q, k, v, delta = inputs(shape)
    initial = initial_state(delta)
    document_starts = random_document_starts(batch, length)
    generator = torch.Generator().manual_seed(0)
    bias = torch.randn(heads, length, generator=generator).requires_grad_()
    triton = get_backend("triton")
    head_launches.select_tile = lambda kernel, x: SQUARE

    def moving(q: Tensor, k: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor | None]:
        return triton.attend(q, k, v, PositionState(initial, delta), None, document_starts, True)

    def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        content, _ = triton.attend(q, k, v, None, DistanceBias(bias), None, False)
        return content

    def decaying(q: Tensor, k: Tensor, v: Tensor, delta: Tensor, sums: Tensor) -> tuple[Tensor, Tensor | None]:
        return triton.attend(q, k, v, PositionState(initial, delta), Decay(sums), None, True)

    def rotating(q: Tensor, k: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
        rotated: tuple[Tensor, ...] = KernelRotation.apply(q, k, initial, delta, True)
        return rotated

    def rotating_first(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        rotated: tuple[Tensor, ...] = KernelRotation.apply(q, k, initial, None, True)
        return rotated

    def updating(delta: Tensor, attended: Tensor, gain: Tensor, active: Tensor, up: Tensor, down: Tensor) -> Tensor:
        updated: Tensor = fused_update(initial, delta, attended, gain, active, up, down)
        return updated

    def updating_first(active: Tensor, up: Tensor, down: Tensor) -> Tensor:
        updated: Tensor = fused_update(initial, None, None, None, active, up, down)
        return updated

    sizes = {
        "sums": (batch, length, heads, 1),
        "attended": (batch, length, heads, size),
        "gain": (heads,),
        "active": (batch, length, 6),
        "up": (6, channels),
        "down": (channels, 6),
    }
    drawn = {name: torch.randn(*size, generator=generator) for name, size in sizes.items()}
    calls: list[tuple[Callable[..., Any], dict[str, Tensor]]] = [
        (moving, {"q": q, "k": k, "v": v, "delta": delta}),
        (biased, {"q": q, "k": k, "v": v, "bias": bias}),
        (decaying, {"q": q, "k": k, "v": v, "delta": delta, "sums": drawn["sums"].cumsum(1)}),
        (rotating, {"q": q, "k": k, "delta": delta}),
        (rotating_first, {"q": q, "k": k}),
        (updating, {"delta": delta, **{name: drawn[name] for name in ("attended", "gain", "active", "up", "down")}}),
        (updating_first, {name: drawn[name] for name in ("active", "up", "down")}),
    ]
    for function, arguments in calls:
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        expected = results_and_gradients(function, arguments)
        found = results_and_gradients(compiled, arguments)
        assert found.keys() == expected.keys()
        yield {f"{function.__name__}: {name}": relative_norm(found[name], expected[name]) for name in expected}


def results_and_gradients(function: Callable[..., Any], arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a function's results, and gradients for all arguments."""
    leaves = {name: argument.detach().clone().requires_grad_() for name, argument in arguments.items()}
    outputs = function(*leaves.values())
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    results = [output for output in outputs if output is not None]
    # The position tensor before the first update has no gradient.
    backward([result for result in results if result.requires_grad])
    found = {f"result {number}": result for number, result in enumerate(results)}
    for name, leaf in leaves.items():
        assert leaf.grad is not None, name
        found[f"d {name}"] = leaf.grad
    return found
