"""Each pair of collectives on two ranks: results equal the definition, and the backward pass is the transpose."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatape.distributed.collectives import all_gather, every_rank, gather_tokens, scatter_sum_tokens
from megatape.distributed.layout import channels_to_tokens, local_rows, local_tokens, tokens_to_channels
from megatape.distributed.mesh import SINGLE, Axis, make_mesh
from megatape.distributed.topology import Topology
from tests.helpers.processes.workers import run_workers

RANKS = 2


@dataclass(frozen=True)
class Pair:
    """Pair of collectives, shape of a rank's input, and definition as a function from all inputs to all outputs."""

    function: Callable[[Tensor, Axis], Tensor]
    shape: tuple[int, ...]
    definition: Callable[[list[Tensor]], list[Tensor]]


def _gathered(parts: list[Tensor]) -> list[Tensor]:
    return [torch.cat(parts, dim=1)] * RANKS


def _scattered(wholes: list[Tensor]) -> list[Tensor]:
    return list(torch.stack(wholes).sum(0).chunk(RANKS, dim=1))


def _to_channels(parts: list[Tensor]) -> list[Tensor]:
    return list(torch.cat(parts, dim=1).chunk(RANKS, dim=2))


def _to_tokens(parts: list[Tensor]) -> list[Tensor]:
    return list(torch.cat(parts, dim=2).chunk(RANKS, dim=1))


def _tokens_to_channels(x: Tensor, axis: Axis) -> Tensor:
    received = tokens_to_channels(x, axis).wait()
    assert received is not None
    return received


# B = 2 samples with N = 6 tokens; L = 4 channels of width 5
PAIRS = {
    "gather_tokens": Pair(gather_tokens, (2, 3, 5), _gathered),
    "scatter_sum_tokens": Pair(scatter_sum_tokens, (2, 6, 5), _scattered),
    "tokens_to_channels": Pair(_tokens_to_channels, (2, 3, 4, 5), _to_channels),
    "channels_to_tokens": Pair(channels_to_tokens, (2, 6, 2, 5), _to_tokens),
}


def draw(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw small integers, so that sums are exact in any order."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).float()


def test_pairs_equal_their_definitions(tmp_path: Path) -> None:
    """Both directions of every pair are exact on every rank."""
    assert run_workers("tests.distributed.test_collectives:check", RANKS, None, tmp_path) == [len(PAIRS)] * RANKS


def check(_: Any, topology: Topology) -> int:
    axis = make_mesh(topology, {"tensor": RANKS})["tensor"]
    rank = topology.rank
    for name, pair in PAIRS.items():
        inputs = [draw(pair.shape, seed).requires_grad_() for seed in range(RANKS)]
        expected = pair.definition(inputs)
        weights = [draw(tuple(part.shape), 10 + seed) for seed, part in enumerate(expected)]
        wanted = torch.autograd.grad([(weight * part).sum() for weight, part in zip(weights, expected, strict=True)], inputs)
        own = inputs[rank].detach().requires_grad_()
        found = pair.function(own, axis)
        (grad,) = torch.autograd.grad((weights[rank] * found).sum(), own)
        assert torch.equal(found, expected[rank]), name
        assert torch.equal(grad, wanted[rank]), name
    assert torch.equal(every_rank(draw((3,), rank), axis), torch.stack([draw((3,), 0), draw((3,), 1)]))
    assert torch.equal(all_gather(local_tokens(draw((2, 6, 5), 3), axis), axis), draw((2, 6, 5), 3))
    return len(PAIRS)


def test_alone_nothing_changes() -> None:
    for pair in PAIRS.values():
        x = draw(pair.shape, 0)
        assert pair.function(x, SINGLE) is x
    x = draw((2, 6), 0)
    assert local_tokens(x, SINGLE) is x
    assert torch.equal(every_rank(x, SINGLE), x[None])


def test_rows_of_a_sharded_vocabulary() -> None:
    """Every id belongs to one rank, and an ignored (negative) target to none."""
    ids = torch.tensor([0, 2, 3, 5, -100])
    rows, mine = local_rows(ids, 3, Axis("tensor", 2, 1))
    assert mine.tolist() == [False, False, True, True, False]
    assert rows.tolist() == [0, 0, 0, 2, 0]
