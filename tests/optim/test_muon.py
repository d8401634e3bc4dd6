"""Muon's arithmetic is torch.optim.Muon's."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megatape.config import parse_config
from megatape.errors import UserError
from megatape.optim import muon
from megatape.optim.matrices import ComputeUpdate
from megatape.optim.muon import Muon, orthogonalize
from megatape.optim.muon_options import MuonOptions, matrix_flops
from megatape.optim.optimizer import build_optimizer
from megatape.registry import ENCODINGS
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.small_models import random_model

SHAPES = [(24, 24), (40, 16), (16, 40), (1, 8)]
RATE = 0.02
DECAY = 0.1
PROJECTIONS = ("query", "key", "value", "output")


class OneRank:
    """Whole matrices of a process that holds all of them."""

    def __init__(self, weights: dict[str, nn.Parameter]) -> None:
        self.weights = weights
        self.states = {name: {"momentum_buffer": torch.zeros_like(weight)} for name, weight in weights.items()}

    def update(self, group: dict[str, Any], compute: ComputeUpdate) -> None:
        for name in group["names"]:
            weight = self.weights[name]
            if weight.grad is None:
                continue
            update = compute(weight.grad, self.states[name], group)
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.sub_(update, alpha=group["lr"])


@pytest.mark.numerics
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_equals_torch(precision: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare three steps. torch always iterates in bfloat16: for float32 its cast is removed; for bfloat16 ours has it, too.

    A scale of max(1, rows / columns), momentum without Nesterov, or decay after the update would fail.
    """
    if precision == torch.float32:
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    else:
        monkeypatch.setattr(muon, "orthogonalize", lambda matrix, _: orthogonalize(matrix, torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    ours = {str(shape): nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES}
    theirs = [nn.Parameter(weight.detach().clone()) for weight in ours.values()]
    groups = [
        {
            "params": list(ours.values()),
            "names": list(ours),
            "whole": True,
            "lr": RATE,
            "weight_decay": DECAY,
        }
    ]
    optimizer = Muon(groups, MuonOptions(kind="muon", learning_rate=RATE))
    matrices = OneRank(ours)
    reference = torch.optim.Muon(theirs, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for weight, other in zip(ours.values(), theirs, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator) / 100
            other.grad = weight.grad.clone()
        optimizer.step(matrices.update)
        reference.step()
        for (name, weight), other in zip(ours.items(), theirs, strict=True):
            assert_close(weight, other, bounds.MUON_STEP, what=name)
            assert not torch.equal(weight, matrices.states[name]["momentum_buffer"])


def test_orthogonalizes() -> None:
    """Singular values are near 1, for tall and wide matrices, and singular vectors stay. A matrix of zeros stays zero."""
    matrix = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    orthogonal = left @ right
    for given, expected in ((matrix, orthogonal), (matrix.T, orthogonal.T)):
        found = orthogonalize(given, torch.float32)
        singular_values = torch.linalg.svdvals(found)
        assert 0.6 < float(singular_values.min())
        assert float(singular_values.max()) < 1.25
        assert float((found - expected).norm() / expected.norm()) < 0.35
    assert not orthogonalize(torch.zeros(3, 5), torch.float32).any()


def test_bfloat16_differs_by_its_rounding() -> None:
    """Relative difference of norms between an update in bfloat16 and in float32."""
    generator = torch.Generator().manual_seed(0)
    for shape in [(128, 128), (384, 128), (512, 2048)]:
        matrix = torch.randn(shape, generator=generator)
        exact = orthogonalize(matrix, torch.float32)
        rounded = orthogonalize(matrix, torch.bfloat16)
        difference = float((rounded.float() - exact).norm() / exact.norm())
        assert 1e-3 < difference < 2e-2


def test_flops_equal_those_of_the_products() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for shape in SHAPES:
        with FlopCounterMode(display=False) as counter:
            orthogonalize(torch.randn(shape), torch.float32)
        assert counter.get_total_flops() == matrix_flops(shape)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_roles(encoding: str) -> None:
    """By default Muon updates only the matrices of attention and MLP. `orthogonalized` adds others."""
    model = random_model(encoding=encoding)
    hidden = set()
    tables = set()
    for name, _ in model.named_parameters():
        is_mlp = ".mlp." in name and name.endswith(".weight")
        is_projection = ".attention." in name and name.split(".")[-2] in PROJECTIONS
        if is_mlp or is_projection:
            hidden.add(name)
        if name.endswith("bias.table"):
            tables.add(name)
    assert _whole(model, ()) == hidden
    embeddings = {"embedding.weight", "head.weight"} | tables
    assert _whole(model, ("matrix", "embedding")) == hidden | embeddings
    position = _whole(model, ("matrix", "position")) - hidden
    own = ("bias.outer_weight", "bias.embedding", "gate.weight", "strength.weight", ".down", ".up")
    for name in position:
        assert ".position." in name or name.endswith(own)
        assert "gain" not in name


def _whole(model: nn.Module, roles: tuple[str, ...]) -> set[str]:
    """Return the names of the weights that Muon updates as whole matrices.

    Args:
        model: Model, whose weights are all in a group.
        roles: Roles in optimizer.orthogonalized, () for the default.
    """
    raw: dict[str, Any] = {"kind": "muon", "learning_rate": 1.0}
    if roles:
        raw["orthogonalized"] = roles
    options = MuonOptions.model_validate(raw)
    members: set[int] = set()
    whole: set[str] = set()
    for group in build_optimizer(model.named_parameters(), options).param_groups:
        members.update(id(weight) for weight in group["params"])
        if group["whole"]:
            whole.update(group["names"])
    assert members == {id(weight) for weight in model.parameters()}
    return whole


def test_muon_needs_a_matrix() -> None:
    """Otherwise AdamW would train under the name of Muon."""
    model = random_model(encoding="rope")
    with pytest.raises(UserError, match="optimizer.kind muon has no matrix to update"):
        _whole(model, ("position",))


def test_bad_options(raw_config: dict[str, Any]) -> None:
    for changed, message in (
        ({"orthogonalized": ["vector"]}, r"optimizer.orthogonalized.0: .*'matrix', 'position' or 'embedding'"),
        ({"orthogonalized": []}, r"optimizer.orthogonalized: .*at least 1"),
        ({"momentum": 1.0}, r"optimizer.momentum: .*less than 1"),
        ({"nesterov": True}, r"optimizer.nesterov: unknown key; .*allowed: kind, .*momentum, orthogonalized"),
    ):
        raw_config["optimizer"] = {"kind": "muon", "learning_rate": 0.01} | changed
        with pytest.raises(ValueError, match=message):
            parse_config(raw_config, "test")
