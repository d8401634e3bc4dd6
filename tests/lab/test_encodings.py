"""Lists of encodings, and the same model with another one."""

import pytest

from megatape.config import ModelConfig
from megatape.lab.encodings import parse_encodings, with_encoding
from tests.helpers.models.small_models import SHAPE


def test_encodings_by_name() -> None:
    assert parse_encodings("tape, rope") == ["tape", "rope"]


def test_unknown_encoding_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'ropes' is not an encoding: did you mean rope\?$"):
        parse_encodings("tape,ropes")


def test_repeated_encoding_is_refused() -> None:
    with pytest.raises(ValueError, match="tape is listed twice"):
        parse_encodings("tape,tape")


def test_model_that_an_encoding_does_not_support_is_refused() -> None:
    with pytest.raises(ValueError, match="encoding rope: head_dim 7 is not a multiple of 2"):
        with_encoding(ModelConfig(**SHAPE | {"encoding": "nope", "head_dim": 7}), "rope")


def test_scaling_is_dropped_for_encodings_without_frequencies() -> None:
    scaled = ModelConfig(**SHAPE | {"scaling": {"kind": "linear", "factor": 2.0}})

    assert with_encoding(scaled, "tape").scaling
    assert with_encoding(scaled, "fire").scaling is None
