"""Parameter groups: which weights decay, and which learn faster."""

import pytest
from torch import nn

from megatape.optim.adamw import AdamWOptions
from megatape.optim.optimizer import Group, build_optimizer
from tests.helpers.models.small_models import random_model

CONFIG = AdamWOptions(learning_rate=1e-3, weight_decay=0.1)


def groups_of(model: nn.Module) -> list[Group]:
    """Return the groups of AdamW. They contain every parameter once."""
    groups = build_optimizer(model.named_parameters(), CONFIG).param_groups
    names = sorted(name for group in groups for name in group["names"])
    assert names == sorted(name for name, _ in model.named_parameters())
    parameters = dict(model.named_parameters())
    for group in groups:
        for name, parameter in zip(group["names"], group["params"], strict=True):
            assert parameter is parameters[name]
    return groups


def test_matrices_decay_and_gains_learn_faster() -> None:
    """Norms, gains and the unused last position update do not decay. Gains learn L = 2 times faster."""
    decaying, constant, gains = groups_of(random_model(num_kv_heads=2))
    assert decaying["weight_decay"] == 0.1
    assert decaying["scale"] == 1.0
    assert "embedding.weight" in decaying["names"]
    assert "blocks.0.position.up" in decaying["names"]

    assert constant["weight_decay"] == 0.0
    assert constant["scale"] == 1.0
    norms = [name for name in constant["names"] if name.endswith("norm.weight")]
    assert len(norms) == 7
    last_update = sorted(set(constant["names"]) - set(norms))
    assert last_update == ["blocks.2.position.content", "blocks.2.position.down", "blocks.2.position.up"]

    assert gains["weight_decay"] == 0.0
    assert gains["scale"] == 2.0
    assert gains["names"] == [f"blocks.{layer}.position.gain" for layer in range(3)]


@pytest.mark.parametrize(
    ("encoding", "decayed", "gain_scale"),
    [
        ("t5", [], None),
        ("fire", ["attention.bias.inner_weight", "attention.bias.outer_weight"], None),
        ("alibi", [], None),
        ("tape_attention_only", [], 4.0),
        ("tape_no_rotation_equivariance", ["position.content", "position.up", "position.down"], 4.0),
        # The authors' gain has R entries per row.
        ("tape_vector", ["position.content", "position.up", "position.down"], 8.0),
    ],
)
def test_matrices_of_an_encoding_decay(encoding: str, decayed: list[str], gain_scale: float | None) -> None:
    """Gains, biases, scalars and the tables of T5 do not decay."""
    groups = groups_of(random_model(encoding=encoding))
    decays = [group["weight_decay"] for group in groups]
    assert decays == [0.1] + [0.0] * (len(groups) - 1)

    added = []
    for name in groups[0]["names"]:
        if name.startswith(("blocks.0.position", "blocks.0.attention.bias")):
            added.append(name.removeprefix("blocks.0."))
    assert added == decayed

    scales = [group["scale"] for group in groups if any(name.endswith("gain") for name in group["names"])]
    expected = []
    if gain_scale is not None:
        expected.append(gain_scale)
    assert scales == expected
