"""Encodings that users wrote for version 0.1 train and export. fixtures/plugins/ has the examples of commit 1f06b461."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import Workers

PLUGINS = Path(__file__).parent / "fixtures" / "plugins"


@pytest.mark.parametrize(
    ("file", "encoding"),
    [
        ("forgetting", "forgetting"),
        pytest.param("add_encoding", "kerple", marks=pytest.mark.slow),
        pytest.param("learned_absolute", "learned_absolute", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("own_modules")
def test_an_encoding_of_version_0_1(
    file: str, encoding: str, raw_config: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    """The run has a process of its own, because only the first import of a moved module prints a warning."""
    plugin = ["--import", str(PLUGINS / f"{file}.py")]
    raw_config["model"]["encoding"] = encoding
    raw_config["training"]["steps"] = 1
    config = tmp_path / "config.json"
    config.write_text(json.dumps(raw_config))
    with Workers(["pretrain", *plugin, "--config", str(config)], 1, tmp_path / "training") as workers:
        assert workers.statuses() == [0], workers.logs()
        assert "megatape.parallel.mesh has moved: import megatape.distributed.mesh instead" in workers.logs()
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    exported = tmp_path / "exported"
    status, _, errors = command("export", *plugin, checkpoint, exported)
    assert status == 0, errors
    model = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True)
    assert model(torch.arange(3, 12)[None]).logits.isfinite().all()
