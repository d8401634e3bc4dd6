"""Reading configuration files and overrides, and errors for other files."""

import json
from pathlib import Path

import pytest

from megatape.config import load_config, parse_config
from tests.helpers.runs.raw_config import RAW, parse


def test_resolved_configuration_parses_to_itself() -> None:
    for scaling in (None, {"kind": "linear", "factor": 2.0}, {"kind": "yarn", "factor": 4.0, "original_length": 16}):
        config = parse(model__scaling=scaling)
        assert parse_config(json.loads(json.dumps(config.model_dump())), "again") == config


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(RAW))
    config = load_config(path, ["training.steps=7", "zero.stage=1", "run.directory=elsewhere", "model.tie_embeddings=true"])
    assert (config.training.steps, config.zero.stage, config.run.directory, config.model.tie_embeddings) == (
        7,
        1,
        "elsewhere",
        True,
    )
    scaled = load_config(path, ["model.scaling.kind=linear", "model.scaling.factor=2.0"]).model.scaling
    assert scaled is not None
    assert (scaled.kind, scaled.factor) == ("linear", 2.0)
    with pytest.raises(ValueError, match="num_layers is 2 in the file, not a section"):
        load_config(path, ["model.num_layers.deep=2"])
    for wrong in ("training.steps", "steps=3", "training.=3", "=3", "model..kind=3"):
        with pytest.raises(ValueError, match="section.key=value"):
            load_config(path, [wrong])
    with pytest.raises(ValueError, match="training.stepz: unknown key"):
        load_config(path, ["training.stepz=3"])


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no configuration at"):
        load_config(tmp_path / "missing.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"model": {,}}')
    with pytest.raises(ValueError, match="line 1, column 12: not JSON"):
        load_config(broken)
    broken.write_text('{"model": {"num_layers": 1, "num_layers": 2}}')
    with pytest.raises(ValueError, match="duplicate key num_layers"):
        load_config(broken)
    broken.write_bytes(b'{"\xff": 1}')
    with pytest.raises(ValueError, match="broken.json: 'utf-8'"):
        load_config(broken)
    broken.write_text("[]")
    with pytest.raises(ValueError, match="JSON object"):
        load_config(broken)
