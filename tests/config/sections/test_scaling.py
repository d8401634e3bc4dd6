"""Keys of model.scaling, which depend on its kind."""

import json
from typing import Any

import pytest

from megatape.config import parse_config
from tests.helpers.runs.raw_config import parse

EARLIER_KEYS = (
    "original_length",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "low_freq_factor",
    "high_freq_factor",
)


@pytest.mark.parametrize(
    "scaling",
    [
        {"kind": "linear", "factor": 2.0},
        {"kind": "yarn", "factor": 4.0, "original_length": 16},
        {"kind": "llama3", "factor": 8.0, "original_length": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
    ids=str,
)
def test_scaling_as_earlier_versions_wrote_it(scaling: dict[str, Any]) -> None:
    """Earlier versions wrote the keys of all kinds, with null for those of other kinds."""
    config = parse(model__scaling=scaling)
    defaults = config.model_dump()["model"]["scaling"]
    earlier = json.loads(json.dumps(dict.fromkeys(EARLIER_KEYS) | defaults))
    assert parse(model__scaling=earlier) == config == parse_config(config.model_dump(), "again")
    with pytest.raises(ValueError, match="model.scaling.facter: unknown key"):
        parse(model__scaling=scaling | {"facter": None})
