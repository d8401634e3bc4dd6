"""Parameter groups."""

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


def test_groups() -> None:
    """Matrices decay; norms, gains and the unused last position update do not; gains learn L times faster."""
    groups = groups_of(random_model(num_kv_heads=2))
    assert [(group["weight_decay"], group["scale"]) for group in groups] == [(0.1, 1.0), (0.0, 1.0), (0.0, 2.0)]
    decayed, kept, gains = (group["names"] for group in groups)
    assert "embedding.weight" in decayed
    assert "blocks.0.position.up" in decayed
    assert gains == [f"blocks.{layer}.position.gain" for layer in range(3)]
    norms = [name for name in kept if name.endswith("norm.weight")]
    assert len(norms) == 7
    others = sorted(set(kept) - set(norms))
    assert others == ["blocks.2.position.content", "blocks.2.position.down", "blocks.2.position.up"]


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
def test_groups_of_the_encodings(encoding: str, decayed: list[str], gain_scale: float | None) -> None:
    """Matrices that an encoding adds decay; its gains, biases, scalars and T5's tables do not."""
    first, *others = groups_of(random_model(encoding=encoding))
    assert first["weight_decay"] == 0.1
    assert [group["weight_decay"] for group in others] == [0.0] * len(others)

    own = []
    for name in first["names"]:
        if name.startswith(("blocks.0.position", "blocks.0.attention.bias")):
            own.append(name.removeprefix("blocks.0."))
    assert own == decayed

    scales = []
    for group in (first, *others):
        if any(name.endswith("gain") for name in group["names"]):
            scales.append(group["scale"])
    expected = []
    if gain_scale is not None:
        expected.append(gain_scale)
    assert scales == expected
