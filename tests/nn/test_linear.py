"""Column-parallel layers on two ranks against plain ones, and what they save for the backward pass."""

import itertools
import weakref
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megatape.accounting.saved_tensors import record_saved
from megatape.distributed.asynchronous import _Exchange
from megatape.distributed.layout import tokens_to_channels
from megatape.distributed.mesh import Axis, make_mesh
from megatape.distributed.topology import Topology
from megatape.distributed.traffic import ALL_GATHER, ALL_TO_ALL, OPERATORS, REDUCE_SCATTER, CountTraffic
from megatape.nn.gathered_input import begin_gather
from megatape.nn.linear import SharedInputLinear, project
from megatape.nn.rebuilt import remat
from megatape.nn.recompute import recompute
from megatape.nn.remat import Remat
from tests.helpers.processes.workers import run_workers

# halves of two samples and of one
BATCH = 3
TOKENS = 6
HIDDEN = 5
OUT = (8, 4, 4)
RANKS = 2


def draw(*shape: int, seed: int) -> Tensor:
    """Draw small integers, so that sums are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_workers("tests.nn.test_linear:measure", RANKS, None, tmp_path_factory.mktemp("layers"))


def outputs_of(layers: list[SharedInputLinear], x: Tensor, x_remat: Remat | None = None) -> list[Tensor]:
    """Return the outputs of layers sharing one input [B, N/T, D], passed on as in a block."""
    return project(begin_gather(x, layers[0].axis, x_remat), *layers)


def measure(_: Any, topology: Topology) -> dict[str, Any]:
    """Measure three layers over one input on this rank: whether they equal plain ones, saved bytes and sent bytes."""
    axis = make_mesh(topology, {"tensor": RANKS})["tensor"]
    rank = topology.rank
    x = draw(BATCH, TOKENS, HIDDEN, seed=0).requires_grad_()
    weights = [draw(size, HIDDEN, seed=size) for size in OUT]
    for weight in weights:
        weight.requires_grad_()
    d_out = [draw(BATCH, TOKENS, size, seed=10 + size) for size in OUT]
    expected = [F.linear(x, weight) for weight in weights]
    wanted = torch.autograd.grad([(d * out).sum() for d, out in zip(d_out, expected, strict=True)], [x, *weights])
    layers = [SharedInputLinear(HIDDEN, size, axis) for size in OUT]
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight.data.copy_(weight.chunk(RANKS)[rank])
    own_weights = [layer.weight for layer in layers]
    found: dict[str, Any] = {}
    for name in ("plain", "recomputed", "rebuilt"):
        own = x.detach().chunk(RANKS, dim=1)[rank].clone().requires_grad_()
        h, h_remat = remat(lambda half: 2 * half, own / 2) if name == "rebuilt" else (own, None)
        with CountTraffic(axis) as traffic, record_saved(exclude=list(own_weights)) as saved:
            out = recompute(outputs_of, layers, h) if name == "recomputed" else outputs_of(layers, h, h_remat)
        kept = saved.bytes
        with CountTraffic(axis) as back:
            loss = torch.stack([(d.chunk(RANKS, dim=2)[rank] * part).sum() for d, part in zip(d_out, out, strict=True)]).sum()
            grads = torch.autograd.grad(loss, [own, *own_weights])
        shares = [wanted[0].chunk(RANKS, dim=1)[rank], *(grad.chunk(RANKS)[rank] for grad in wanted[1:])]
        found[name] = {
            "outputs": all(
                torch.equal(part, whole.chunk(RANKS, dim=2)[rank]) for part, whole in zip(out, expected, strict=True)
            ),
            "gradients": all(torch.equal(*pair) for pair in zip(grads, shares, strict=True)),
            "kept": kept,
            "sent": [dict(traffic.sent["tensor"]), dict(back.sent["tensor"])],
        }
    own = x.detach().chunk(RANKS, dim=1)[rank].clone().requires_grad_()
    found["order"] = _order(axis, own, layers)
    outputs = outputs_of(layers, own)
    gone = [weakref.ref(part) for part in outputs]
    del outputs
    return found | {"freed": all(reference() is None for reference in gone)}


def _order(axis: Axis, own: Tensor, layers: list[SharedInputLinear]) -> list[str]:
    """Record when collectives start, products run and exchanges end, forward and backward."""
    order = _Order()
    finish = _Exchange.finish

    def note_and_finish(*args: Any) -> torch.Tensor:
        order.seen.append("end")
        return finish(*args)

    with order, patch.object(_Exchange, "finish", note_and_finish):
        gathered = begin_gather(own, axis)
        exchange = tokens_to_channels(torch.ones(BATCH, TOKENS // RANKS, RANKS, 2, requires_grad=True), axis)
        outputs = [*(layer(gathered.whole, gathered=gathered).output for layer in layers), exchange.wait()]
        total = torch.stack([part.sum() for part in outputs if part is not None]).sum()
        order.seen.append("backward")
        total.backward()
    return order.seen


class _Order(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "c10d" or name in ("mm", "bmm", "addmm"):
            self.seen.append(OPERATORS.get(name, "product"))
        return func(*args, **(kwargs or {}))


def test_exchange_runs_beside_the_products(results: list[dict[str, Any]]) -> None:
    """In both directions the exchange starts after the collective that the products wait for, and ends after them."""
    for result in results:
        split = result["order"].index("backward")
        forward = result["order"][:split]
        backward = result["order"][split + 1 :]
        # A gathering for each half of the samples; the first layer takes one at a time.
        assert forward == [ALL_GATHER, ALL_GATHER, ALL_TO_ALL, *["product"] * 4, "end"]
        assert backward == [ALL_TO_ALL, ALL_GATHER, *["product"] * 6, "end", REDUCE_SCATTER]


@pytest.mark.parametrize("name", ["plain", "recomputed", "rebuilt"])
def test_equal_to_plain_layers(results: list[dict[str, Any]], name: str) -> None:
    for result in results:
        assert result[name]["outputs"]
        assert result[name]["gradients"]


def test_keep_their_part_of_the_input_alone(results: list[dict[str, Any]]) -> None:
    """Three layers save one shard of the input, gather it once in each direction, and reduce-scatter once."""
    part = BATCH * TOKENS // RANKS * HIDDEN * 4
    for result, name in itertools.product(results, ("plain", "rebuilt")):
        assert result[name]["kept"] == part  # of `rebuilt` it is what the input is computed from
        assert result[name]["sent"] == [{ALL_GATHER: part}, {ALL_GATHER: part, REDUCE_SCATTER: part}]


def test_recomputation_gathers_once_more_not_twice(results: list[dict[str, Any]]) -> None:
    part = BATCH * TOKENS // RANKS * HIDDEN * 4
    for result in results:
        assert result["recomputed"]["sent"] == [{ALL_GATHER: part}, {ALL_GATHER: part, REDUCE_SCATTER: part}]


def test_keep_no_graph_alive(results: list[dict[str, Any]]) -> None:
    """An unreferenced output is freed, because its graph has no cycle."""
    assert all(result["freed"] for result in results)
