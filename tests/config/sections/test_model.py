"""Defaults of the model section that follow other fields."""

import pytest

from tests.helpers.runs.raw_config import parse


def test_defaults_that_follow_other_fields() -> None:
    model = parse(model__num_kv_heads=2).model
    assert (model.num_kv_heads, model.head_dim, model.position_size) == (2, 16, 8)


@pytest.mark.parametrize("encoding", ["alibi", "t5", "fire", "nope"])
def test_without_planes_a_head_may_be_odd(encoding: str) -> None:
    assert parse(model__head_dim=7, model__encoding=encoding).model.head_dim == 7
