"""Cross entropy over chunks of tokens and shards of the vocabulary, against the plain one."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.parallel import loss
from megatape.parallel.layout import local_tokens
from megatape.parallel.mesh import SINGLE, Axis, make_mesh
from megatape.runtime.topology import Topology
from megatape.targets import IGNORE_INDEX
from tests.helpers import bounds
from tests.helpers.bounds import assert_close, assert_within, relative_difference
from tests.helpers.workers import run_workers

pytestmark = pytest.mark.numerics

VOCAB, HIDDEN = 301, 16
# Elements of the logits that a rank computes at a time: one token, a number that does not divide the tokens, all.
CHUNKS = (1, 5 * VOCAB, 10**9)


def example(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """x [2, 24, HIDDEN], weight [VOCAB, HIDDEN], targets [2, 24], some of them ignored."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 24, HIDDEN, generator=generator).to(dtype)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype)
    targets = torch.randint(0, VOCAB, (2, 24), generator=generator)
    targets[0, 3:9] = IGNORE_INDEX
    return x.requires_grad_(), weight.requires_grad_(), targets


def plain(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")


@pytest.mark.parametrize("chunk", CHUNKS)
def test_equal_to_plain(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the loss is scaled afterwards, as in training, and without gradients."""
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", chunk)
    x, weight, targets = example()
    expected = plain(x, weight, targets)
    wanted = torch.autograd.grad(expected * 0.125, (x, weight))
    found = loss.cross_entropy(x, weight, targets, VOCAB, SINGLE)
    assert_close(found, expected, bounds.CROSS_ENTROPY)
    for ours, theirs in zip(torch.autograd.grad(found * 0.125, (x, weight)), wanted, strict=True):
        assert_close(ours, theirs, bounds.CROSS_ENTROPY)
    with pytest.raises(RuntimeError, match="differentiated only once"):
        found.backward()
    with torch.no_grad():
        assert loss.cross_entropy(x, weight, targets, VOCAB, SINGLE).item() == found.item()


def test_chunks_in_bfloat16_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weight's gradient sums 1024 chunks of one token: rounded to bfloat16 at every chunk it would be 45% off."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 1024, HIDDEN, generator=generator).to(torch.bfloat16)
    weight = torch.zeros(8, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(1, 1024, dtype=torch.long)
    gradients = []
    for chunk in (10**9, 1):
        monkeypatch.setattr(loss, "CHUNK_ELEMENTS", chunk)
        gradients.append(torch.autograd.grad(loss.cross_entropy(x, weight, targets, 8, SINGLE), weight)[0].float())
    assert_close(gradients[1], gradients[0], bounds.CHUNKS_IN_BFLOAT16)


def test_tensor_ranks(tmp_path: Path) -> None:
    """Four ranks, the last with padding: loss, gradient of x (by tokens) and of the weight (by rows), for every chunk size."""
    for result in run_workers("tests.parallel.test_loss:compare_with_plain", 4, None, tmp_path):
        assert_within(max(result), bounds.CROSS_ENTROPY, result)


def compare_with_plain(_: Any, topology: Topology) -> list[float]:
    axis = make_mesh(topology, {"tensor": 4})["tensor"]
    x, weight, targets = example()
    expected = plain(x, weight, targets)
    grad_x, grad_weight = torch.autograd.grad(expected, (x, weight))
    rows = -(-VOCAB // 4)
    padded = F.pad(weight.detach(), (0, 0, 0, 4 * rows - VOCAB), value=7.0)  # whatever the padding holds
    padded_grad = F.pad(grad_weight, (0, 0, 0, 4 * rows - VOCAB))
    mine = slice(topology.rank * rows, (topology.rank + 1) * rows)
    differences = []
    for chunk in CHUNKS:
        loss.CHUNK_ELEMENTS = chunk
        own_x, own_weight = local_tokens(x.detach(), axis).requires_grad_(), padded[mine].clone().requires_grad_()
        found = loss.cross_entropy(own_x, own_weight, targets, VOCAB, axis)
        found.backward()
        assert own_x.grad is not None and own_weight.grad is not None
        differences += [
            relative_difference(found, expected),
            relative_difference(own_x.grad, local_tokens(grad_x, axis)),
            relative_difference(own_weight.grad, padded_grad[mine]),
        ]
    return differences


@pytest.mark.parametrize(("vocab_size", "size", "real"), [(9, 8, [2, 2, 2, 2, 1, 0, 0, 0]), (8, 4, [2] * 4), (5, 1, [5])])
def test_padding_rows_are_minus_infinity(vocab_size: int, size: int, real: list[int]) -> None:
    for rank in range(size):
        logits = loss.mask_padding(torch.zeros(1, 3, -(-vocab_size // size)), vocab_size, Axis("tensor", size, rank))
        assert int(torch.isfinite(logits[0, 0]).sum()) == real[rank]
