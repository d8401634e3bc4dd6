"""Shapes of models to measure."""

from pathlib import Path

import pytest

from megatape.config import load_config
from megatape.lab.benchmark.models.shapes import SHAPES

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("155m", "tape_155m.json"),
        ("1b", "tape_1b.json"),
        ("7b", "tape_7b.json"),
        ("8b", "tape_8b_gqa.json"),
    ],
)
def test_shapes_match_the_configurations(name: str, file: str) -> None:
    config = load_config(ROOT / "configs" / file)

    shape = SHAPES[name]

    assert shape.model == config.model.model_copy(update={"rotary_base": shape.model.rotary_base})
    assert shape.batch == config.training.micro_batch_size
    assert shape.length == config.data.sequence_length
