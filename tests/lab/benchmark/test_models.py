"""Shapes of the measured models."""

from pathlib import Path

import pytest

from megatape.config import load_config
from megatape.lab.benchmark.models import SHAPES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("name", "file"), [("155m", "155m"), ("1b", "1b"), ("7b", "7b"), ("8b", "8b_gqa")])
def test_shapes_match_the_configurations(name: str, file: str) -> None:
    config = load_config(ROOT / f"configs/tape_{file}.json")
    shape = SHAPES[name]
    assert shape.model == config.model.model_copy(update={"rotary_base": shape.model.rotary_base})
    assert (shape.batch, shape.length) == (config.training.micro_batch_size, config.data.sequence_length)
