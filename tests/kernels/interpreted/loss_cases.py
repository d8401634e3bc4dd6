"""Cross entropy by the kernel, compared with its formula in float64."""

from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from megatape.distributed.mesh import Axis
from megatape.nn import loss
from megatape.nn.kernels import loss as loss_kernel
from megatape.nn.loss import LossFormula
from megatape.nn.targets import IGNORE_INDEX
from tests.kernels.interpreted.comparison import relative_norm


class LossCase(NamedTuple):
    """A loss computation.

    Attributes:
        vocab: Size of the vocabulary.
        ranks: Number of ranks sharding the vocabulary.
        dtype: Data type of x and the weight.
        softcap: Soft-cap of logits.
        z_loss: Weight of the z-loss.
        columns: Columns read by a program at a time.
    """

    vocab: int
    ranks: int
    dtype: torch.dtype
    softcap: float | None
    z_loss: float
    columns: int


LOSSES = [
    LossCase(301, 1, torch.float32, softcap=None, z_loss=0.0, columns=64),
    LossCase(301, 1, torch.float32, softcap=3.0, z_loss=0.03, columns=512),
    # One padding row
    LossCase(301, 2, torch.float32, softcap=3.0, z_loss=0.03, columns=64),
    # A last rank only holding padding
    LossCase(5, 4, torch.float32, softcap=None, z_loss=0.03, columns=64),
    LossCase(301, 1, torch.bfloat16, softcap=3.0, z_loss=0.03, columns=64),
    LossCase(301, 2, torch.bfloat16, softcap=None, z_loss=0.0, columns=64),
]


def loss_differences(case: LossCase) -> dict[str, float]:
    """Compare the loss by the kernel, and its gradients, with float64.

    The ranks run one after the other, twice: in the first round they record what they would exchange in the second one.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, 16, generator=generator).to(case.dtype).requires_grad_()
    weight = torch.randn(case.vocab, 16, generator=generator).to(case.dtype).requires_grad_()
    targets = torch.randint(case.vocab, (2, 9), generator=generator)
    targets[0, 3:5] = IGNORE_INDEX
    expected = exact_loss(case, x, weight, targets)
    rows = -(-case.vocab // case.ranks)
    padding = case.ranks * rows - case.vocab
    padded = F.pad(weight.detach(), (0, 0, 0, padding), value=7.0)
    shards = [shard.requires_grad_() for shard in padded.split(rows)]
    statistics: list[Tensor] = []

    def every_rank(local: Tensor, axis: Axis) -> Tensor:
        statistics.append(local.clone())
        return torch.stack(statistics[-case.ranks :])

    def unchanged(tensor: Tensor, axis: Axis) -> Tensor:
        return tensor

    def run_ranks() -> list[tuple[Tensor, Tensor, Tensor]]:
        results = []
        for rank, shard in enumerate(shards):
            axis = Axis("tensor", case.ranks, rank)
            formula = LossFormula(case.vocab, axis, case.softcap, case.z_loss, by_kernel=True)
            total = loss.cross_entropy(x, shard, targets, formula)
            grad_x, grad_shard = torch.autograd.grad(total, (x, shard))
            results.append((total.detach(), grad_x, grad_shard))
        return results

    with (
        patch.object(loss_kernel, "COLUMNS", case.columns),
        patch.object(loss, "has_kernels", lambda device: True),
        patch.object(loss, "all_gather", unchanged),
        patch.object(loss, "reduce_scatter", unchanged),
        patch.object(loss, "every_rank", every_rank),
    ):
        run_ranks()
        totals, grads_x, grads_shards = zip(*run_ranks(), strict=True)
    results = {
        "loss": totals[-1],
        "d x": torch.stack(grads_x).sum(0),
        "d weight": torch.cat(grads_shards)[: case.vocab],
    }
    return {name: relative_norm(result, expected[name]) for name, result in results.items()}


def exact_loss(case: LossCase, x: Tensor, weight: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the cross entropy, and its gradients after adding the z-loss, in float64."""
    x = x.detach().double().requires_grad_()
    weight = weight.detach().double().requires_grad_()
    logits = F.linear(x, weight).flatten(0, 1)
    if case.softcap is not None:
        logits = case.softcap * (logits / case.softcap).tanh()
    counts = targets.flatten() != IGNORE_INDEX
    entropy = F.cross_entropy(logits[counts], targets.flatten()[counts], reduction="sum")
    total = entropy + case.z_loss * logits[counts].logsumexp(1).square().sum()
    grad_x, grad_weight = torch.autograd.grad(total, (x, weight))
    return {"loss": entropy.detach(), "d x": grad_x, "d weight": grad_weight}
