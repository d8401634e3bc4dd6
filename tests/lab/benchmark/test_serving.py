"""Report on exported models against a Llama: models built, counted and printed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import ModelConfig
from megatape.lab.benchmark.figures.timing import Timer
from megatape.lab.benchmark.models.exported import build
from megatape.lab.benchmark.models.sessions import PromptBatch
from megatape.lab.benchmark.serving import cache_table, measure_cache, report
from tests.helpers.checks.cells import cells
from tests.helpers.models.small_models import SHAPE
from tests.helpers.processes.command import Command

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


def test_report() -> None:
    """One table for the cache and one for each batch of prompts, with a row for each model."""
    models = build(SMALL, ["tape", "fire", "randpe"], 12, CPU, torch.float32)
    prompt_batches = {"1 x 12": PromptBatch(1, "none", 12), "3 x 9, padded": PromptBatch(3, "left", 9)}

    paragraphs: list[str] = []
    report(models, list(prompt_batches.values()), "float32", Timer(CPU, 2), paragraphs.append)

    assert "3 layers of width 32, float32 on a CPU" in paragraphs[0]
    assert len(paragraphs) == 4
    for label, paragraph in zip(prompt_batches, paragraphs[2:], strict=True):
        rows = [cells(line) for line in paragraph.splitlines()[2:]]
        assert [row[:2] for row in rows] == [[label, name] for name in models]
        assert rows[0][3] == "1.00"
        assert rows[0][6] == "1.00"


def test_cache_bytes() -> None:
    """TAPE's values carry e in all layers but the last."""
    models = build(SMALL, ["tape"], 12, CPU, torch.bfloat16)
    keys = 2 * SMALL.num_layers * SMALL.num_kv_heads * SMALL.head_dim
    values_with_e = keys + 2 * (SMALL.num_layers - 1) * SMALL.num_kv_heads * SMALL.head_dim

    lines = cache_table(measure_cache(models, CPU)).splitlines()

    _, *llama = cells(lines[2])
    _, *tape = cells(lines[3])
    assert llama == [f"{keys:,}", f"{keys:,}", f"{2 * keys:,}"]
    assert tape == [f"{keys:,}", f"{values_with_e:,}", f"{keys + values_with_e:,}"]


def test_command(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw_config))
    words = ("--config", file, "--layers", 1, "--lengths", 4, "--batches", 1, "--padding", "none", "--rounds", 1)

    status, printed, errors = command("benchmark", "serving", *words)

    assert status == 0, errors
    assert "1 layer of width" in printed
    assert re.search(r"1 x 4 +\| tape", printed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--encodings", "rope"), "rope is exported as the Llama itself"),
        (("--encodings", "tapes"), "'tapes' is not an encoding"),
        (("--config", "nowhere.json"), "no configuration at"),
    ],
    ids=["rope", "unknown encoding", "no file"],
)
def test_bad_options_are_refused(command: Command, words: tuple[str, str], message: str) -> None:
    status, _, errors = command("benchmark", "serving", *words)

    assert status == 2
    assert message in errors
