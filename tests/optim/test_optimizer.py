"""Parameter groups."""

import pytest

from megatape.optim.adamw import AdamWOptions
from megatape.optim.optimizer import build_optimizer
from tests.helpers.models import random_model


def test_groups() -> None:
    """Matrices decay; norms, gains and the unused last position update do not; gains learn L times faster."""
    model = random_model(num_kv_heads=2)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    config = AdamWOptions(learning_rate=1e-3, weight_decay=0.1)
    groups = build_optimizer(model.named_parameters(), config).param_groups
    decayed, kept, gains = ([names[id(parameter)] for parameter in group["params"]] for group in groups)
    assert len(decayed) + len(kept) + len(gains) == len(names)
    assert [(group["weight_decay"], group["scale"]) for group in groups] == [(0.1, 1.0), (0.0, 1.0), (0.0, 2.0)]
    assert gains == [f"blocks.{layer}.position.gain" for layer in range(3)]
    norms = [name for name in kept if name.endswith("norm.weight")]
    assert len(norms) == 7
    assert sorted(set(kept) - set(norms)) == [f"blocks.2.position.{part}" for part in ("content", "down", "up")]
    assert "embedding.weight" in decayed and "blocks.0.position.up" in decayed


@pytest.mark.parametrize(
    ("encoding", "decayed", "gain_scale"),
    [
        ("t5", [], None),
        ("fire", ["attention.bias.inner_weight", "attention.bias.outer_weight"], None),
        ("alibi", [], None),
        ("tape_attention_only", [], 4.0),
        ("tape_no_rotation_equivariance", ["position.content", "position.up", "position.down"], 4.0),
        ("tape_vector", ["position.content", "position.up", "position.down"], 8.0),  # the authors' gain has R entries per row
    ],
)
def test_groups_of_the_encodings(encoding: str, decayed: list[str], gain_scale: float | None) -> None:
    """Matrices that an encoding adds decay; its gains, biases, scalars and T5's tables do not."""
    model = random_model(encoding=encoding)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    config = AdamWOptions(learning_rate=1e-3, weight_decay=0.1)
    groups = build_optimizer(model.named_parameters(), config).param_groups
    assert sum(len(group["params"]) for group in groups) == len(names)
    found = [names[id(parameter)] for parameter in groups[0]["params"]]
    own = [
        name.partition("blocks.0.")[2] for name in found if name.startswith(("blocks.0.position", "blocks.0.attention.bias"))
    ]
    assert groups[0]["weight_decay"] == 0.1 and own == decayed
    gains = [group for group in groups if any(names[id(parameter)].endswith("gain") for parameter in group["params"])]
    assert [group["scale"] for group in gains] == ([] if gain_scale is None else [gain_scale])
    assert all(group["weight_decay"] == 0.0 for group in groups[1:])
