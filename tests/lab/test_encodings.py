"""Lists of encodings, and the same model with another one."""

import pytest

from megatape.config import ModelConfig
from megatape.lab.encodings import parse_encodings, with_encoding
from tests.helpers.models.small_models import SHAPE


def test_encodings_by_name() -> None:
    assert parse_encodings("tape, rope") == ["tape", "rope"]
    with pytest.raises(ValueError, match=r"'ropes' is not an encoding: did you mean rope\?$"):
        parse_encodings("tape,ropes")
    with pytest.raises(ValueError, match="tape is listed twice"):
        parse_encodings("tape,tape")
    with pytest.raises(ValueError, match="encoding rope: head_dim 7 is not a multiple of 2"):
        with_encoding(ModelConfig(**SHAPE | {"encoding": "nope", "head_dim": 7}), "rope")
    scaled = ModelConfig(**SHAPE | {"scaling": {"kind": "linear", "factor": 2.0}})
    assert with_encoding(scaled, "tape").scaling
    assert with_encoding(scaled, "fire").scaling is None
