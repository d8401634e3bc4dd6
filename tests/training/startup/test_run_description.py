"""Lines printed before a run's first step."""

from pathlib import Path
from typing import Any

import pytest

from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import parse_config
from megatape.data.synthetic.addition_problems import AdditionTask, prepare_addition
from megatape.errors import UserError
from megatape.training.startup.run_description import skipped_documents, trained_share
from tests.helpers.runs.run_data import open_run_data


def test_trained_share_is_only_described_with_frozen_weights(raw_config: dict[str, Any]) -> None:
    whole = parse_config(raw_config, "test")
    total = count_parameters(whole.model).total
    assert trained_share(whole.model, whole.training, total) == []
    raw_config["model"]["lora"] = {"rank": 2, "alpha": 4.0, "targets": ["query"]}
    raw_config["training"]["trainable"] = ["adapters"]
    adapters = 2 * 2 * (32 + 32)  # layers, rank, inputs and outputs
    config = parse_config(raw_config, "test")
    (line,) = trained_share(config.model, config.training, total + adapters)
    assert line == f"trained: {adapters} of {total + adapters:,} parameters ({adapters / (total + adapters):.2%})"


def test_skipped_documents_are_counted(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """A run prints a line for each split at its start."""
    prepare_addition(AdditionTask(2, 30, 0), tmp_path / "data", lambda tokens: None)
    raw_config["data"] = {"path": str(tmp_path / "data"), "sequence_length": 12, "samples": "documents", "prompt_end": "9"}
    with pytest.raises(UserError, match=r"split train of .* without the data.prompt_end '9': \d+, the first is document"):
        open_run_data(parse_config(raw_config, "test"))
    raw_config["data"]["missing_prompt_end"] = "skip"
    data = open_run_data(parse_config(raw_config, "test"))
    lines = skipped_documents(data)
    skipped = [data.train.corpora[""].num_skipped, data.validation[""].num_skipped]
    assert min(skipped) > 0
    assert len(lines) == 2
    for line, split, count in zip(lines, ("train", "validation"), skipped, strict=True):
        assert line == f"split {split} of {tmp_path / 'data'}: {count:,} documents without data.prompt_end are skipped"
