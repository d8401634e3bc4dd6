"""Exported models against a Llama: what is built, counted and printed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.config import ModelConfig
from megatape.lab.benchmark.serving import Cell, StaticSession, build, cache_table, peak_memory, report
from megatape.lab.benchmark.timing import Timer
from tests.helpers import bounds
from tests.helpers.bounds import assert_close
from tests.helpers.cells import cells
from tests.helpers.command import Command
from tests.helpers.models import SHAPE

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


def test_report() -> None:
    """One table for the cache and one for each cell, with a row for each model."""
    models = build(SMALL, ["tape", "fire", "randpe"], 12, CPU, torch.float32)
    paragraphs = list(report(models, [Cell(1, "none", 12), Cell(3, "left", 9)], "float32", Timer(CPU, 2)))
    assert "3 layers of width 32, float32 on a CPU" in paragraphs[0]
    assert len(paragraphs) == 4
    for paragraph, label in zip(paragraphs[2:], ("1 x 12", "3 x 9, padded"), strict=True):
        rows = [cells(line) for line in paragraph.splitlines()[2:]]
        assert [row[:2] for row in rows] == [[label, name] for name in models]
        assert (rows[0][3], rows[0][6]) == ("1.00", "1.00")


def test_cache_bytes() -> None:
    """TAPE's values carry e in all layers but the last."""
    models = build(SMALL, ["tape"], 12, CPU, torch.bfloat16)
    llama, tape = (cells(line)[1:] for line in cache_table(models, CPU).splitlines()[2:])
    width = 2 * SMALL.num_layers * SMALL.num_kv_heads * SMALL.head_dim
    assert [text.replace(",", "") for text in llama] == [str(width), str(width), str(2 * width)]
    wider = width + 2 * (SMALL.num_layers - 1) * SMALL.num_kv_heads * SMALL.head_dim
    assert [text.replace(",", "") for text in tape] == [str(width), str(wider), str(width + wider)]


def test_prompts() -> None:
    prompt = Cell(3, "left", 10).prompt(7, CPU)
    assert prompt["attention_mask"].sum(1).tolist() == [5, 10, 5] and int(prompt["input_ids"].max()) == 6
    assert Cell(2, "none", 10).prompt(7, CPU)["attention_mask"].all()


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("name", ["Llama", "tape"])
def test_static_session(name: str) -> None:
    """Logits are those of the whole text in one call, and further rounds compile nothing. One prompt is padded."""
    model = build(SMALL, ["tape"], 24, CPU, torch.float32)[name]
    session = StaticSession(model, Cell(2, "left", 10).prompt(7, CPU))
    with torch.no_grad():
        expected = model(session.tokens, attention_mask=session.mask, position_ids=session.positions).logits
    torch.compiler.reset()
    for stance in ("default", "fail_on_recompile"):
        with torch.compiler.set_stance(stance):
            assert_close(session.read(), expected[:, 9:10], bounds.EXPORTED)
            assert_close(session.decode(), expected[:, -1:], bounds.EXPORTED)


def test_memory_by_length() -> None:
    """It grows with the tokens, and with eager attention with their pairs."""
    models = build(SMALL, ["tape"], 512, CPU, torch.float32)
    peaks = {}
    for name in ("sdpa", "eager"):
        models["tape"].set_attn_implementation(name)
        peaks[name] = [
            peak_memory(models["tape"], Cell(2, "left", length).prompt(SMALL.vocab_size, CPU)) for length in (256, 512)
        ]
    assert peaks["sdpa"][1] < 2.05 * peaks["sdpa"][0] and peaks["eager"][1] > 3 * peaks["eager"][0]


def test_command(command: Command, raw_config: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw_config))
    given = ("--config", file, "--layers", 1, "--lengths", 4, "--batches", 1, "--padding", "none", "--rounds", 1)
    code, printed, errors = command("benchmark", "serving", *given)
    assert code == 0, errors
    assert "1 layer of width" in printed and re.search(r"1 x 4 +\| tape", printed)
    for arguments, message in [
        (("--encodings", "rope"), "rope is exported as the Llama itself"),
        (("--encodings", "tapes"), "'tapes' is not an encoding"),
        (("--config", tmp_path / "nowhere.json"), "no configuration at"),
    ]:
        code, _, errors = command("benchmark", "serving", *arguments)
        assert code == 2 and message in errors
