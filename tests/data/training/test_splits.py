"""Data that do not fit the configuration of a run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from megatape.config import Config
from megatape.data.training.splits import open_data


@pytest.mark.parametrize("field, value", [("eos_id", 3), ("bos_id", None), ("vocab_size", 299)])
def test_ids_that_are_not_the_tokenizers(
    data_directory: Path, raw_config: dict[str, Any], tmp_path: Path, field: str, value: int | None
) -> None:
    """Documents that end with another token would have other masks: refused alone, and in a mixture at any place."""
    copy = shutil.copytree(data_directory, tmp_path / "copy")
    content = json.loads((copy / "index.json").read_text())
    recorded = content["tokenizer"][field]
    content["tokenizer"][field] = value
    (copy / "index.json").write_text(json.dumps(content))
    message = f"copy/index.json: corrupted, {field} is {value}, but {recorded} by tokenizer.model"
    raw_config["data"]["path"] = str(copy)
    with pytest.raises(ValueError, match=message):
        open_data(Config.model_validate(raw_config))
    del raw_config["data"]["path"]
    raw_config["data"]["mixture"] = {
        name: {"path": str(path), "weight": 1.0} for name, path in (("a", data_directory), ("b", copy))
    }
    with pytest.raises(ValueError, match=message):
        open_data(Config.model_validate(raw_config))
