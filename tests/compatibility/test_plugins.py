"""Encodings that users wrote for version 0.1 train and export. fixtures/plugins/ has the examples of commit 1f06b461."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import Workers

PLUGINS = Path(__file__).parent / "fixtures" / "plugins"
# Runs the code of the export, as a user of transformers would.
LOAD = """
import sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert model(torch.arange(3, 12)[None]).logits.isfinite().all()
"""


@pytest.mark.parametrize(
    ("file", "encoding"),
    [
        ("forgetting", "forgetting"),
        pytest.param("add_encoding", "kerple", marks=pytest.mark.slow),
        pytest.param("learned_absolute", "learned_absolute", marks=pytest.mark.slow),
    ],
)
def test_an_encoding_of_version_0_1(file: str, encoding: str, raw_config: dict[str, Any], tmp_path: Path) -> None:
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
    with Workers(["export", *plugin, str(checkpoint), str(exported)], 1, tmp_path / "exporting") as workers:
        assert workers.statuses() == [0], workers.logs()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", LOAD, str(exported)]
    loaded = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=scaled(120))
    assert loaded.returncode == 0, loaded.stderr
