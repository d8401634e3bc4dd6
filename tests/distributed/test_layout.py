"""Splitting samples across ranks, against definitions: the exchange around attention moves numbers without changing them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatape.distributed.layout import heads_to_tokens, states_before_chunks, tokens_to_heads, zigzag
from megatape.distributed.mesh import SINGLE, Axis, make_mesh
from megatape.distributed.topology import Topology
from tests.helpers.processes.workers import run_workers

RANKS = 2
# B = 2 samples with N = 6 tokens; queries with 4 heads, keys with 2, and a wider state with 2
SHAPES = ((2, 6, 4, 3), (2, 6, 2, 3), (2, 6, 2, 5))


def draw(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def test_tokens_and_heads(tmp_path: Path) -> None:
    """Each part has all tokens of the rank's heads. The exchange is reversible, and gradients take the opposite way."""
    assert run_workers("tests.distributed.test_layout:check", RANKS, None, tmp_path) == [True] * RANKS


def check(_: Any, topology: Topology) -> bool:
    axis = make_mesh(topology, {"sequence": RANKS})["sequence"]

    def tokens(whole: Tensor) -> Tensor:
        return whole.chunk(RANKS, dim=1)[axis.rank]

    def heads(whole: Tensor) -> Tensor:
        return whole.chunk(RANKS, dim=2)[axis.rank]

    wholes = draw(0)
    weights = draw(1)
    for function, here, there in ((tokens_to_heads, tokens, heads), (heads_to_tokens, heads, tokens)):
        given = [here(whole).contiguous().requires_grad_() for whole in wholes]
        q, absent, k, e = function(axis, given[0], None, given[1], given[2])
        found = (q, k, e)
        assert absent is None
        gradients = torch.autograd.grad(
            [(part * there(weight)).sum() for part, weight in zip(found, weights, strict=True)], given
        )
        for part, whole, gradient, weight in zip(found, wholes, gradients, weights, strict=True):
            assert torch.equal(part, there(whole))
            assert part.is_contiguous()
            assert torch.equal(gradient, here(weight))
    return True


def test_alone_nothing_changes() -> None:
    q, k, _ = draw(0)
    same_q, none, same_k = tokens_to_heads(SINGLE, q, None, k)
    assert same_q is q
    assert none is None
    assert same_k is k


def test_chunks_of_context_parallel_ranks() -> None:
    """Each rank has an early and a late chunk, so all ranks see equally many pairs of tokens."""
    tokens = torch.arange(24).view(1, 24)
    shares = [zigzag(tokens, Axis("context", 3, rank)) for rank in range(3)]
    assert shares[0].tolist() == [[0, 1, 2, 3, 20, 21, 22, 23]]
    assert shares[2].tolist() == [[8, 9, 10, 11, 12, 13, 14, 15]]
    assert len({int(share.sum()) for share in shares}) == 1
    assert zigzag(None, Axis("context", 3, 1)) is None
    assert zigzag(tokens, SINGLE) is tokens


def test_states_before_chunks(tmp_path: Path) -> None:
    """States are sums or products that do not commute, with their gradients."""
    assert run_workers("tests.distributed.test_layout:check_states", RANKS, None, tmp_path) == [True] * RANKS


def check_states(_: Any, topology: Topology) -> bool:
    context = make_mesh(topology, {"context": RANKS})["context"]
    generator = torch.Generator().manual_seed(0)
    chunks, weights = (torch.randint(-3, 4, (2, 2 * RANKS, 2, 2), generator=generator).double() for _ in range(2))
    for combine, first in ((torch.add, torch.zeros(2, 2, 2).double()), (torch.matmul, torch.eye(2).double().expand(2, 2, 2))):
        whole = chunks.clone().requires_grad_()
        expected = before(whole, first, combine)
        own = zigzag(chunks, context).requires_grad_()
        found = states_before_chunks(own, context, first, combine)
        assert torch.equal(found, zigzag(expected, context))
        (gradient,) = torch.autograd.grad((found * zigzag(weights, context)).sum(), own)
        (wanted,) = torch.autograd.grad((expected * weights).sum(), whole)
        assert torch.equal(gradient, zigzag(wanted, context))
    return True


def before(chunks: Tensor, first: Tensor, combine: Any) -> Tensor:
    """Return the state before each chunk of a sample."""
    states = [first]
    for chunk in chunks[:, :-1].unbind(1):
        states.append(combine(states[-1], chunk))
    return torch.stack(states, dim=1)
