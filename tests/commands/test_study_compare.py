"""megatape study compare: options about tasks and plans."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes.command import Command, assert_refused


@pytest.fixture
def file(raw_config: dict[str, Any], tmp_path: Path) -> Path:
    """Write a configuration whose data does not exist."""
    raw_config["data"]["path"] = str(tmp_path / "missing")
    raw_config["cluster"] = {"nodes": 1, "gpus_per_node": 2, "gpu": "h100"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw_config))
    return path


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("", "--evaluate '': it names no task"),
        ("passkeys", "'passkeys' is not a task: did you mean passkey?"),
        ("passkey --trails 3", "--evaluate 'passkey --trails 3': --trails is not an option: did you mean --trials?"),
        ("passkey --trials 0", "--trials"),
        ("passkey --lengths 1 'x", "No closing quotation"),
        ("passkey another_model", "unexpected: another_model"),
        ("passkey --output folder", "leave out models and --output"),
        ("passkey --tp 2", "leave out --tp"),
    ],
)
def test_a_wrong_task_is_refused_before_training(command: Command, file: Path, tmp_path: Path, task: str, message: str) -> None:
    output = tmp_path / "none"
    result = command(
        "study", "compare", "--config", file, "--encodings", "rope", "--evaluate", task, "--output", output, "--dry-run"
    )

    assert_refused(result, message)
    assert not output.exists()


def test_the_plan_needs_no_data(command: Command, file: Path, tmp_path: Path) -> None:
    """The models of a control and of a pattern of layers are planned as they would be trained."""
    output = tmp_path / "none"
    encodings = "rope,tape,rope:params=tape,rope:layers=rope@8*1,nope@full*1"
    words = ["study", "compare", "--config", file, "--encodings", encodings, "--seeds", "2", "--output", output]

    status, printed, errors = command(*words, "--dry-run", "--price", "2.5")

    assert status == 0, errors
    lines = printed.splitlines()
    assert lines[0].startswith("8 runs: 4 models, 2 seeds; ")
    parameters = {}
    for label in ("rope", "tape", "rope:params=tape", "rope:layers=rope@8*1,nope@full*1"):
        (row,) = [line for line in lines if line.startswith(f"{label} ")]
        parameters[label] = int(row.split()[1].replace(",", ""))
    assert parameters["rope"] < parameters["tape"]
    assert abs(parameters["rope:params=tape"] - parameters["tape"]) < parameters["tape"] - parameters["rope"]
    assert "at 2.5 per GPU-hour" in printed
    assert not output.exists()


def test_a_price_without_a_plan_is_refused(command: Command, file: Path, tmp_path: Path) -> None:
    words = ["study", "compare", "--config", file, "--encodings", "rope", "--output", tmp_path / "none"]

    assert_refused(command(*words, "--price", "2"), "--price needs --dry-run")
