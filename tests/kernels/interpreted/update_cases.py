"""TAPE's position update by the kernels, compared with the same layer in float64."""

from typing import NamedTuple

import torch
from torch import Tensor

from megatape.attention.rotation import PositionState
from megatape.config import ModelConfig
from megatape.distributed.mesh import SINGLE
from megatape.encodings.tape import TapeUpdate
from tests.kernels.interpreted.comparison import backward, relative_norm
from tests.kernels.launches import Shape


class UpdateCase(NamedTuple):
    """Updating the position state.

    Attributes:
        shape: B, N, H, L, R.
        inner: Inner size I.
        dtype: Data type for weights and arguments.
        delta: Whether e has a second term.
        attends: Whether attention moves e.
        halved: Whether A e is a half of A [v | e].
    """

    shape: Shape
    inner: int
    dtype: torch.dtype
    delta: bool
    attends: bool
    halved: bool = False


UPDATES = [
    UpdateCase((2, 5, 4, 2, 8), 6, torch.float32, delta=True, attends=True),
    UpdateCase((1, 7, 3, 3, 20), 17, torch.float32, delta=False, attends=True),
    UpdateCase((1, 4, 2, 2, 8), 6, torch.float32, delta=True, attends=False),
    UpdateCase((2, 5, 4, 4, 16), 12, torch.bfloat16, delta=True, attends=True),
    UpdateCase((2, 5, 4, 2, 8), 6, torch.float32, delta=True, attends=True, halved=True),
]


def update_differences(case: UpdateCase) -> dict[str, float]:
    """Compare a layer's update by the kernels with the same layer in float64 without them."""
    batch, length, heads, channels, size = case.shape
    generator = torch.Generator().manual_seed(0)
    config = ModelConfig(
        num_layers=1,
        hidden_size=heads * size,
        num_heads=heads,
        num_kv_heads=channels,
        mlp_size=4,
        vocab_size=8,
        position_size=case.inner,
        max_positions=8,
    )
    layer = TapeUpdate(config, SINGLE, attention=case.attends).to(case.dtype)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=generator)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(batch, length, *sizes, generator=generator).to(case.dtype)

    initial = draw(1, size)
    arguments = {"delta": draw(channels, size), "attended": draw(heads, size), "m": draw(heads * size)}

    layer.use_kernels(True)
    results = run_update(case, layer, initial.float(), arguments)
    layer.use_kernels(False)
    expected = run_update(case, layer.double(), initial.double(), arguments)

    assert results.keys() == expected.keys()
    return {name: relative_norm(result, expected[name]) for name, result in results.items()}


def run_update(case: UpdateCase, layer: TapeUpdate, initial: Tensor, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the second term of e after updating it, and all gradients, in float64."""
    dtype = next(layer.parameters()).dtype
    leaves = {name: argument.detach().to(dtype).requires_grad_() for name, argument in arguments.items()}
    delta = None
    if case.delta:
        delta = leaves["delta"]
    attended = None
    if case.attends:
        attended = leaves["attended"]
    if case.halved:
        both = torch.cat([leaves["attended"], leaves["attended"]], dim=-1)
        _, attended = both.chunk(2, dim=-1)
    updated = layer(PositionState(initial, delta), attended, leaves["m"]).delta
    layer.zero_grad()
    backward([updated])
    results = {"D": updated.detach().double()}
    for name, tensor in [*layer.named_parameters(), *leaves.items()]:
        if tensor.grad is not None:
            results[f"d {name}"] = tensor.grad.double()
    return results
