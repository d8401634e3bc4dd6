"""Report on exported models against a Llama: what is built, counted and printed."""

import json
import re
from pathlib import Path
from typing import Any

import torch

from megatape.config import ModelConfig
from megatape.lab.benchmark.exported import build
from megatape.lab.benchmark.serving import cache_table, measure_cache, report
from megatape.lab.benchmark.sessions import Workload
from megatape.lab.benchmark.timing import Timer
from tests.helpers.checks.cells import cells
from tests.helpers.models.small_models import SHAPE
from tests.helpers.processes.command import Command

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


def test_report() -> None:
    """One table for the cache and one for each workload, with a row for each model."""
    models = build(SMALL, ["tape", "fire", "randpe"], 12, CPU, torch.float32)
    paragraphs = list(report(models, [Workload(1, "none", 12), Workload(3, "left", 9)], "float32", Timer(CPU, 2)))
    assert "3 layers of width 32, float32 on a CPU" in paragraphs[0]
    assert len(paragraphs) == 4
    for paragraph, label in zip(paragraphs[2:], ("1 x 12", "3 x 9, padded"), strict=True):
        rows = [cells(line) for line in paragraph.splitlines()[2:]]
        assert [row[:2] for row in rows] == [[label, name] for name in models]
        assert (rows[0][3], rows[0][6]) == ("1.00", "1.00")


def test_cache_bytes() -> None:
    """TAPE's values carry e in all layers but the last."""
    models = build(SMALL, ["tape"], 12, CPU, torch.bfloat16)
    llama, tape = (cells(line)[1:] for line in cache_table(measure_cache(models, CPU)).splitlines()[2:])
    width = 2 * SMALL.num_layers * SMALL.num_kv_heads * SMALL.head_dim
    assert [text.replace(",", "") for text in llama] == [str(width), str(width), str(2 * width)]
    wider = width + 2 * (SMALL.num_layers - 1) * SMALL.num_kv_heads * SMALL.head_dim
    assert [text.replace(",", "") for text in tape] == [str(width), str(wider), str(width + wider)]


def test_command(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw_config))
    given = ("--config", file, "--layers", 1, "--lengths", 4, "--batches", 1, "--padding", "none", "--rounds", 1)
    code, printed, errors = command("benchmark", "serving", *given)
    assert code == 0, errors
    assert "1 layer of width" in printed
    assert re.search(r"1 x 4 +\| tape", printed)
    for arguments, message in [
        (("--encodings", "rope"), "rope is exported as the Llama itself"),
        (("--encodings", "tapes"), "'tapes' is not an encoding"),
        (("--config", tmp_path / "nowhere.json"), "no configuration at"),
    ]:
        code, _, errors = command("benchmark", "serving", *arguments)
        assert code == 2
        assert message in errors
