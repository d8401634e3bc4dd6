"""Muon: the same arithmetic as torch.optim.Muon, the weights it updates, and options that are refused."""

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
    """Matrices of a single process, which holds all of them."""

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
def test_three_steps_equal_those_of_torch(precision: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale of max(1, rows / columns), momentum without Nesterov, or decay after the update would fail.

    torch always iterates in bfloat16. For float32 its cast is removed, and for bfloat16 ours is added.
    """
    if precision == torch.float32:
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    else:
        monkeypatch.setattr(muon, "orthogonalize", lambda matrix, _: orthogonalize(matrix, torch.bfloat16))
    generator = torch.Generator().manual_seed(0)
    weights = {str(shape): nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES}
    reference_weights = {name: nn.Parameter(weight.detach().clone()) for name, weight in weights.items()}
    group = {
        "params": list(weights.values()),
        "names": list(weights),
        "whole": True,
        "lr": RATE,
        "weight_decay": DECAY,
    }
    optimizer = Muon([group], MuonOptions(kind="muon", learning_rate=RATE))
    matrices = OneRank(weights)
    reference = torch.optim.Muon(reference_weights.values(), lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for name, weight in weights.items():
            weight.grad = torch.randn(weight.shape, generator=generator) / 100
            reference_weights[name].grad = weight.grad.clone()
        optimizer.step(matrices.update)
        reference.step()
        for name, weight in weights.items():
            assert_close(weight, reference_weights[name], bounds.MUON_STEP, what=name)
            assert not torch.equal(weight, matrices.states[name]["momentum_buffer"])


@pytest.mark.parametrize("transpose", [False, True], ids=["tall", "wide"])
def test_an_orthogonalized_matrix_keeps_its_singular_vectors(transpose: bool) -> None:
    """Singular values of the result are near 1."""
    matrix = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))
    if transpose:
        matrix = matrix.T
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    expected = left @ right

    orthogonal = orthogonalize(matrix, torch.float32)
    singular_values = torch.linalg.svdvals(orthogonal)
    assert float(singular_values.min()) > 0.6
    assert float(singular_values.max()) < 1.25
    relative_error = float((orthogonal - expected).norm() / expected.norm())
    assert relative_error < 0.35


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert not orthogonalize(torch.zeros(3, 5), torch.float32).any()


def test_bfloat16_differs_by_its_rounding() -> None:
    """Compares norms of an update in bfloat16 and in float32. No difference at all would mean that it is not rounded."""
    generator = torch.Generator().manual_seed(0)
    for shape in [(128, 128), (384, 128), (512, 2048)]:
        matrix = torch.randn(shape, generator=generator)
        exact = orthogonalize(matrix, torch.float32)
        rounded = orthogonalize(matrix, torch.bfloat16)
        relative_error = float((rounded.float() - exact).norm() / exact.norm())
        assert relative_error > 1e-3, shape
        assert relative_error < 2e-2, shape


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flops_equal_those_of_the_products(shape: tuple[int, int]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        orthogonalize(torch.randn(shape), torch.float32)
    assert counter.get_total_flops() == matrix_flops(shape)


def _is_hidden_matrix(name: str) -> bool:
    """Whether a weight is a matrix of attention or of the MLP."""
    is_mlp = ".mlp." in name and name.endswith(".weight")
    is_projection = ".attention." in name and name.split(".")[-2] in PROJECTIONS
    return is_mlp or is_projection


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_muon_updates_matrices_of_the_chosen_roles(encoding: str) -> None:
    """Muon updates the matrices of attention and MLP, and those that `orthogonalized` adds."""
    model = random_model(encoding=encoding)
    names = [name for name, _ in model.named_parameters()]
    hidden = {name for name in names if _is_hidden_matrix(name)}
    tables = {name for name in names if name.endswith("bias.table")}
    embeddings = {"embedding.weight", "head.weight"} | tables
    assert _updated_by_muon(model, ()) == hidden
    assert _updated_by_muon(model, ("matrix", "embedding")) == hidden | embeddings

    position = _updated_by_muon(model, ("matrix", "position")) - hidden
    projections = ("gate.weight", "strength.weight", "projection.weight", ".gate", ".content", ".down", ".up")
    endings = ("bias.outer_weight", "bias.embedding", *projections)
    for name in position:
        assert ".position." in name or name.endswith(endings)
        assert "gain" not in name


def _updated_by_muon(model: nn.Module, roles: tuple[str, ...]) -> set[str]:
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


def test_muon_without_a_matrix_is_refused() -> None:
    """Muon without a matrix would be AdamW under another name."""
    model = random_model(encoding="rope")
    with pytest.raises(UserError, match="optimizer.kind muon has no matrix to update"):
        _updated_by_muon(model, ("position",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"orthogonalized": ["vector"]}, r"optimizer.orthogonalized.0: .*'matrix', 'position' or 'embedding'"),
        ({"orthogonalized": []}, r"optimizer.orthogonalized: .*at least 1"),
        ({"momentum": 1.0}, r"optimizer.momentum: .*less than 1"),
        ({"nesterov": True}, r"optimizer.nesterov: unknown key; .*allowed: kind, .*momentum, orthogonalized"),
    ],
    ids=str,
)
def test_unfit_options_are_refused(raw_config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    raw_config["optimizer"] = {"kind": "muon", "learning_rate": 0.01} | changes
    with pytest.raises(ValueError, match=message):
        parse_config(raw_config, "test")
