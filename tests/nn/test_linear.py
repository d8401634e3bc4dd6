"""Column-parallel layers on two ranks against plain ones, and what they save for the backward pass."""

import weakref
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.accounting.memory.saved_tensors import record_saved
from megatape.distributed.asynchronous import _Exchange
from megatape.distributed.layout import tokens_to_channels
from megatape.distributed.mesh import Axis, make_mesh
from megatape.distributed.topology import Topology
from megatape.distributed.traffic import ALL_GATHER, ALL_TO_ALL, OPERATORS, REDUCE_SCATTER, TrafficCounter
from megatape.nn.linear import SharedInputLinear, project
from megatape.nn.remat.gathered_input import begin_gather
from megatape.nn.remat.rebuilt import call_rebuilt
from megatape.nn.remat.recompute import recompute
from megatape.nn.remat.remat import Remat
from tests.helpers.processes.workers import run_workers

BATCH = 3  # the halves have two samples and one
TOKENS = 6
HIDDEN = 5
OUT = (8, 4, 4)
RANKS = 2
SHARD_BYTES = BATCH * TOKENS // RANKS * HIDDEN * 4
MODES = ("plain", "recomputed", "rebuilt")


class Measured(NamedTuple):
    """Comparison of three layers on a rank with plain layers.

    Attributes:
        outputs_equal: Whether each output equals the plain layer's.
        gradients_equal: Whether each gradient equals the plain layer's.
        saved_bytes: Bytes saved for the backward pass, without the weights.
        sent_forward: Bytes sent in the forward pass, by collective.
        sent_backward: Bytes sent in the backward pass, by collective.
    """

    outputs_equal: list[bool]
    gradients_equal: list[bool]
    saved_bytes: int
    sent_forward: dict[str, int]
    sent_backward: dict[str, int]


class RankResults(NamedTuple):
    """Results of a rank.

    Attributes:
        measured: Comparison by mode.
        order: Names of collectives and products in the order of running.
        freed: Whether outputs were freed when they were no longer referenced.
    """

    measured: dict[str, Measured]
    order: list[str]
    freed: bool


def draw(*shape: int, seed: int) -> Tensor:
    """Draw small integers, so that sums are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[RankResults]:
    results = []
    for measured, order, freed in run_workers(
        "tests.nn.test_linear:measure_all", RANKS, None, tmp_path_factory.mktemp("layers")
    ):
        results.append(RankResults({mode: Measured(*fields) for mode, fields in measured.items()}, order, freed))
    return results


def outputs_of(layers: list[SharedInputLinear], x: Tensor, x_remat: Remat | None = None) -> list[Tensor]:
    """Return the outputs of layers sharing one input [B, N/T, D], passed on as in a block."""
    return project(begin_gather(x, layers[0].axis, x_remat), *layers)


def measure_all(_: Any, topology: Topology) -> RankResults:
    axis = make_mesh(topology, {"tensor": RANKS})["tensor"]
    x = draw(BATCH, TOKENS, HIDDEN, seed=0).requires_grad_()
    weights = [draw(size, HIDDEN, seed=size).requires_grad_() for size in OUT]
    layers = [SharedInputLinear(HIDDEN, size, axis) for size in OUT]
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight.data.copy_(weight.chunk(RANKS)[topology.rank])
    local_x = x.detach().chunk(RANKS, dim=1)[topology.rank].clone().requires_grad_()

    measured = {mode: measure(mode, layers, x, weights) for mode in MODES}
    order = record_order(axis, local_x, layers)
    outputs = outputs_of(layers, local_x)
    references = [weakref.ref(output) for output in outputs]
    del outputs
    return RankResults(measured, order, all(reference() is None for reference in references))


def measure(mode: str, layers: list[SharedInputLinear], x: Tensor, weights: list[Tensor]) -> Measured:
    """Compare layers with plain ones.

    Args:
        mode: One of MODES.
        layers: Layers of this rank.
        x: Input of the plain layers, [BATCH, TOKENS, HIDDEN].
        weights: Weights of the plain layers, [size, HIDDEN].
    """
    axis = layers[0].axis
    output_gradients = [draw(BATCH, TOKENS, size, seed=10 + size) for size in OUT]
    expected = [F.linear(x, weight) for weight in weights]
    expected_gradients = torch.autograd.grad(expected, [x, *weights], output_gradients)
    local_weights = [layer.weight for layer in layers]
    local_x = x.detach().chunk(RANKS, dim=1)[axis.rank].clone().requires_grad_()
    local_gradients = [gradient.chunk(RANKS, dim=2)[axis.rank] for gradient in output_gradients]

    h, h_remat = local_x, None
    if mode == "rebuilt":
        h, h_remat = call_rebuilt(lambda half: 2 * half, local_x / 2)
    with TrafficCounter(axis) as forward, record_saved(exclude=list(local_weights)) as saved:
        if mode == "recomputed":
            outputs = recompute(outputs_of, layers, h)
        else:
            outputs = outputs_of(layers, h, h_remat)
    saved_bytes = saved.bytes  # the backward pass adds to `saved`
    with TrafficCounter(axis) as backward:
        gradients = torch.autograd.grad(outputs, [local_x, *local_weights], local_gradients)

    outputs_equal = []
    for output, whole in zip(outputs, expected, strict=True):
        outputs_equal.append(torch.equal(output, whole.chunk(RANKS, dim=2)[axis.rank]))
    expected_x, *expected_weights = expected_gradients
    gradients_equal = [torch.equal(gradients[0], expected_x.chunk(RANKS, dim=1)[axis.rank])]
    for gradient, whole in zip(gradients[1:], expected_weights, strict=True):
        gradients_equal.append(torch.equal(gradient, whole.chunk(RANKS)[axis.rank]))
    sent_forward = dict(forward.sent["tensor"])
    return Measured(outputs_equal, gradients_equal, saved_bytes, sent_forward, dict(backward.sent["tensor"]))


def record_order(axis: Axis, local_x: Tensor, layers: list[SharedInputLinear]) -> list[str]:
    """Record when collectives start, products run and exchanges end, forward and backward."""
    order = Order()
    finish = _Exchange.finish

    def recorded_finish(*args: Any) -> Tensor:
        order.names.append("end")
        return finish(*args)

    with order, patch.object(_Exchange, "finish", recorded_finish):
        gathered = begin_gather(local_x, axis)
        exchange = tokens_to_channels(torch.ones(BATCH, TOKENS // RANKS, RANKS, 2, requires_grad=True), axis)
        outputs = [layer(gathered.whole, gathered=gathered).output for layer in layers]
        outputs.append(exchange.wait())
        total = torch.stack([output.sum() for output in outputs if output is not None]).sum()
        order.names.append("backward")
        total.backward()
    return order.names


class Order(TorchDispatchMode):
    """Records the names of collectives, and "product" for each matrix product, in the order of running."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" or name in ("mm", "bmm", "addmm"):
            self.names.append(OPERATORS.get(name, "product"))
        return func(*args, **(kwargs or {}))


def test_exchange_runs_beside_the_products(results: list[RankResults]) -> None:
    """In both directions the exchange starts after the collective that the products wait for, and ends after them."""
    for result in results:
        separator = result.order.index("backward")
        # Each half of the samples is gathered on its own, and the first layer multiplies one half at a time.
        assert result.order[:separator] == [ALL_GATHER, ALL_GATHER, ALL_TO_ALL, *["product"] * 4, "end"]
        assert result.order[separator + 1 :] == [ALL_TO_ALL, ALL_GATHER, *["product"] * 6, "end", REDUCE_SCATTER]


@pytest.mark.parametrize("mode", MODES)
def test_equal_to_plain_layers(results: list[RankResults], mode: str) -> None:
    for result in results:
        assert result.measured[mode].outputs_equal == [True] * len(OUT)
        assert result.measured[mode].gradients_equal == [True] * (1 + len(OUT))


@pytest.mark.parametrize("mode", ["plain", "rebuilt"])
def test_layers_save_only_their_shard_of_the_input(results: list[RankResults], mode: str) -> None:
    """Three layers save one shard of the input, or in its place the tensor that it is computed from."""
    for result in results:
        assert result.measured[mode].saved_bytes == SHARD_BYTES


@pytest.mark.parametrize("mode", MODES)
def test_layers_gather_once_in_each_direction(results: list[RankResults], mode: str) -> None:
    """Recomputation gathers once more in the backward pass, not twice."""
    for result in results:
        assert result.measured[mode].sent_forward == {ALL_GATHER: SHARD_BYTES}
        assert result.measured[mode].sent_backward == {ALL_GATHER: SHARD_BYTES, REDUCE_SCATTER: SHARD_BYTES}


def test_no_graph_is_kept_alive(results: list[RankResults]) -> None:
    """An unreferenced output is freed, because its graph has no cycle."""
    assert [result.freed for result in results] == [True] * RANKS
