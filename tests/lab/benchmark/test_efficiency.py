"""Costs of encodings: counts, ratios over rounds, and the report."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from megatape.accounting.whole_model.flops import forward_flops
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.config import ModelConfig
from megatape.lab.benchmark import efficiency
from megatape.lab.benchmark.efficiency import costs_table, report
from megatape.lab.benchmark.models.compared_models import ModelName
from megatape.lab.benchmark.models.measured_model import ModelCost
from megatape.lab.benchmark.models.measured_parts import PARTS
from megatape.lab.benchmark.models.shapes import ModelShape, paper_config
from megatape.registry import ENCODINGS
from tests.helpers.checks.cells import cells
from tests.helpers.models.small_models import SHAPE
from tests.helpers.processes.command import Command

CPU = torch.device("cpu")
SMALL = ModelConfig(**SHAPE)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_report_on_a_gpu() -> None:
    paragraphs: list[str] = []
    report(ModelShape(SMALL, 2, 32), list(ENCODINGS), 2, torch.device("cuda"), paragraphs.append)
    text = "\n".join(paragraphs)
    assert "bfloat16" in text
    assert "CUDA events" in text


def test_report_starts_with_the_paper_and_includes_the_baseline() -> None:
    paragraphs: list[str] = []
    report(ModelShape(SMALL, 1, 16), ["tape"], 1, CPU, paragraphs.append)
    assert "320.91 G FLOPs and 160.46 G MACs here, 321.10 and 160.46 in the paper" in paragraphs[0]
    assert "float32 on a CPU" in paragraphs[1]
    assert "3 layers of width 32, N 16, batch 1" in paragraphs[1]
    for text in paragraphs[2:]:
        assert re.findall(r"`(\w+)`", text) == ["rope", "tape"]
        # The shape is not the paper's.
        assert "paper" not in text
    assert len(paragraphs) == 3 + len(PARTS)


def test_training_steps_of_a_llama_of_transformers_are_timed() -> None:
    """Nothing else of it is, because it has none of our parts."""
    paragraphs: list[str] = []
    report(ModelShape(SMALL, 1, 16), [], 1, CPU, paragraphs.append, llama=True)

    has_llama = ["Llama of transformers" in text for text in paragraphs]
    assert has_llama == [False, False, False, True, True, False, False]


def test_columns_of_the_paper() -> None:
    config = paper_config()
    cost = ModelCost(count_parameters(config).total, forward_flops(config, 1024), 2**20, 2**20)

    lines = costs_table({ModelName("rope"): cost, ModelName("nope"): cost}, in_paper=True).splitlines()

    assert cells(lines[2])[:7] == ["`rope`", "154.89", "154.89", "320.91", "321.10", "160.46", "160.46"]
    assert cells(lines[3])[:7] == ["`nope`", "154.89", "", "320.91", "", "160.46", ""]


def test_shape_of_the_paper() -> None:
    config = paper_config()

    assert efficiency.is_paper_shape(config, 1024)
    assert not efficiency.is_paper_shape(config, 512)


@pytest.fixture
def config_file(raw_config: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    return path


def test_command_with_a_configuration(command: Command, config_file: Path) -> None:
    status, printed, errors = command("benchmark", "efficiency", "--config", config_file, "--encodings", "fire", "--rounds", 1)

    assert status == 0, errors
    assert "2 layers of width 32, N 32, batch 1, float32" in printed
    assert "`fire`" in printed
    assert "attention layer:" in printed


def test_number_of_rounds_is_checked(command: Command, config_file: Path) -> None:
    status, _, errors = command("benchmark", "efficiency", "--config", config_file, "--rounds", 0)

    assert status == 2
    assert "--rounds: must be greater than or equal to 1, got '0'" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--encodings", "rope,nothing"), "'nothing' is not an encoding"),
        (("--encodings", ""), "'' is not an encoding"),
        (("--config", "nowhere.json"), "no configuration at nowhere.json"),
    ],
    ids=["unknown encoding", "no encoding", "no file"],
)
def test_bad_options_are_refused(command: Command, words: tuple[str, str], message: str) -> None:
    status, _, errors = command("benchmark", "efficiency", *words)

    assert status == 2
    assert message in errors
