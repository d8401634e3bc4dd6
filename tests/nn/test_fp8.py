"""FP8 layers, against torchao's own module, which multiplies the same numbers, and against float64."""

import sys
from collections.abc import Callable
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from megatape.config import Fp8Recipe
from megatape.distributed.mesh import SINGLE
from megatape.nn.fp8 import fp8_linear_function
from megatape.nn.linear import Linear, Projection, RowLinear, SharedInputLinear
from megatape.nn.linear_function import LinearFunction, linear
from megatape.nn.remat.gathered_input import GatheredInput, begin_gather
from megatape.nn.remat.rebuilt import call_rebuilt
from megatape.nn.remat.remat import Remat
from tests.helpers.checks import bounds

pytestmark = [pytest.mark.fp8, pytest.mark.numerics]
CPU = torch.device("cpu")
RECIPES = [recipe for recipe in get_args(Fp8Recipe) if recipe != "none"]
# Widths of two layers sharing an input. A row-parallel layer follows the first one.
SIZE = 32
OUT = (48, 16)
Layers = tuple[list[SharedInputLinear], RowLinear]


def make_layers(recipe: str | None, dtype: torch.dtype = torch.bfloat16) -> Layers:
    """Return two layers with one input, one of which has a bias, and a layer on the first one's output."""
    column = [SharedInputLinear(SIZE, size, bias=size == OUT[1]) for size in OUT]
    row = RowLinear(OUT[0], SIZE)
    generator = torch.Generator().manual_seed(0)
    linear_function: LinearFunction = linear
    if recipe is not None:
        linear_function = fp8_linear_function(recipe, CPU)
    layers: list[SharedInputLinear | RowLinear] = [*column, row]
    for layer in layers:
        layer.use_linear_function(linear_function)
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype)
    return column, row


def double(x: Tensor) -> Tensor:
    return 2 * x


def halve(x: Tensor) -> Tensor:
    return x / 2


def input_of(x: Tensor, function: Callable[[Tensor], Tensor], selective: bool) -> GatheredInput:
    """Return function(x) as the input of layers. If `selective`, the backward pass computes it again."""
    if not selective:
        return begin_gather(function(x), SINGLE, None)
    output, output_remat = call_rebuilt(function, x)
    return begin_gather(output, SINGLE, output_remat)


def results_of(layers: Layers, selective: bool = False) -> list[Tensor]:
    """Return outputs, gradient of the input, and gradients of all weights. If `selective`, inputs are recomputed."""
    column, row = layers
    dtype = row.weight.dtype
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 32, SIZE, generator=generator).to(dtype).requires_grad_()
    output_gradients = [torch.randn(2, 32, size, generator=generator).to(dtype) for size in (SIZE, OUT[1])]
    doubled = input_of(x, double, selective)
    first, second = (layer(doubled.whole, gathered=doubled).output for layer in column)
    halved = input_of(first, halve, selective)
    outputs = [row(halved.whole, remat=halved.remat), second]
    inputs = [x]
    for layer in (*column, row):
        inputs += layer.parameters()
    gradients = torch.autograd.grad(outputs, inputs, output_gradients)
    return [*(output.detach() for output in outputs), *gradients]


@pytest.mark.parametrize("recipe", RECIPES)
def test_equal_to_torchaos_modules(recipe: str) -> None:
    """Results are bit-identical, also if the input's arguments are saved in its place."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # seconds

    def multiply(layer: Linear, x: Tensor) -> Tensor:
        module = nn.Linear(1, 1, bias=layer.bias is not None)
        module.weight, module.bias = layer.weight, layer.bias  # type: ignore[assignment]
        config = Float8LinearConfig.from_recipe_name(recipe)
        object.__setattr__(config, "emulate", True)
        out: Tensor = convert_to_float8_training(nn.Sequential(module), config=config)(x)
        return out

    class TheirColumn(SharedInputLinear):
        def forward(self, x: Tensor, *, gathered: GatheredInput | None = None, is_last: bool = True) -> Projection:
            return Projection(multiply(self, x), None)

    class TheirRow(RowLinear):
        def forward(self, x: Tensor, *, remat: Remat | None = None) -> Tensor:
            return multiply(self, x)

    column, row = make_layers(None)
    for layer in column:
        layer.__class__ = TheirColumn
    row.__class__ = TheirRow
    expected = results_of((column, row))
    for selective in (False, True):
        for result, expected_result in zip(results_of(make_layers(recipe), selective), expected, strict=True):
            assert torch.equal(result, expected_result), selective


@pytest.mark.parametrize("recipe", RECIPES)
def test_rounded_as_fp8_is(recipe: str) -> None:
    exact_results = results_of(make_layers(None, torch.float64))
    for result, exact in zip(results_of(make_layers(recipe)), exact_results, strict=True):
        difference = (result.double() - exact).norm() / exact.norm()
        bounds.assert_within(float(difference), bounds.FP8)


@pytest.mark.parametrize("selective", [False, True])
def test_arguments_are_saved_in_place_of_the_input(selective: bool) -> None:
    """One layer, or several sharing an input, save their arguments in place of the input."""
    (first, second), row = make_layers("tensorwise")
    x = torch.ones(2, 32, SIZE, dtype=torch.bfloat16, requires_grad=True)
    ones = torch.ones(2, 32, OUT[0], dtype=torch.bfloat16)
    doubled = input_of(x, double, selective)
    halved = input_of(ones, halve, selective)
    memories = [StorageWeakRef(gathered.whole.untyped_storage()) for gathered in (doubled, halved)]

    outputs = [layer(doubled.whole, gathered=doubled).output for layer in (first, second)]
    outputs.append(row(halved.whole, remat=halved.remat))
    del doubled, halved

    assert [memory.expired() for memory in memories] == [selective, selective]
    del outputs  # the graphs must live until here


def test_evaluation_does_not_use_fp8() -> None:
    """Evaluation multiplies as an exported model does."""
    (layer, _), row = make_layers("rowwise")
    x = torch.randn(2, 32, SIZE, generator=torch.Generator().manual_seed(2)).bfloat16()
    plain = F.linear(x, layer.weight)
    assert not torch.equal(layer(x).output, plain)
    assert torch.equal(layer.eval()(x).output, plain)
    assert torch.equal(row.eval()(plain), F.linear(plain, row.weight))


def test_fp8_needs_a_gpu_and_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(ValueError, match=r"NVIDIA A100 does not multiply in FP8: that takes compute capability 8\.9 or more"):
        fp8_linear_function("rowwise", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    fp8_linear_function("rowwise", torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ValueError, match=r"torchao cannot be imported \(.*\): pip install .*\[fp8\]"):
        fp8_linear_function("rowwise", CPU)
