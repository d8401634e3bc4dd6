"""Functions that torch.compile keeps as one operator."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from megatape.utils.pytorch.operators import drop_nones, operator, restore_nones


class Factors(NamedTuple):
    """Arguments of an operator, one of which may be missing."""

    x: Tensor
    weight: Tensor | None
    scale: float


def _shapes(factors: Factors, shift: int) -> list[Tensor]:
    return [torch.empty_like(factors.x)]


@operator("test_scaled", _shapes)
def scaled(factors: Factors, shift: int) -> list[Tensor]:
    product = factors.x * factors.scale + shift
    if factors.weight is not None:
        product = product @ factors.weight
    return [product]


@operator("test_counted", _shapes, lambda factors, shift: 7)
def counted(factors: Factors, shift: int) -> list[Tensor]:
    return [factors.x * factors.scale]


def test_fields_of_named_tuples_are_arguments_of_the_operator() -> None:
    schema = str(torch.ops.megatape.test_scaled.default._schema)
    assert schema == "megatape::test_scaled(Tensor x, Tensor? weight, float scale, SymInt shift) -> Tensor[]"


def test_compiled_calls_are_one_operator_with_the_same_results() -> None:
    targets: list[str] = []

    def record(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    x = torch.randn(3, 3)
    compiled = torch.compile(lambda x: scaled(Factors(x, None, 2.0), 1)[0], backend=record, fullgraph=True)
    assert torch.equal(compiled(x), scaled(Factors(x, None, 2.0), 1)[0])
    assert targets[0] == "megatape.test_scaled.default"
    assert not any("mul" in target for target in targets)


def test_flops_are_counted_on_shapes_or_by_a_formula() -> None:
    """A function with a formula is an operator outside of compiled graphs, too."""
    factors = Factors(torch.randn(4, 4), torch.randn(4, 4), 2.0)
    with FlopCounterMode(display=False) as counter:
        torch.ops.megatape.test_scaled(*factors, 1)
    assert counter.get_total_flops() == 2 * 4**3
    with FlopCounterMode(display=False) as counter:
        counted(factors, 1)
    assert counter.get_total_flops() == 7


def test_missing_results_are_restored() -> None:
    x = torch.ones(2)
    assert restore_nones(drop_nones(None, x, None), False, True, False) == [None, x, None]
