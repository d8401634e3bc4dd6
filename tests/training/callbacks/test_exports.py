"""Exports made while training, by child processes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from megatape.run_folder import RunFolder
from megatape.training.callbacks.exports import Exports
from tests.helpers.processes.command import Command, assert_refused
from tests.helpers.processes.hub import Hub, online_environment, served, use_hub
from tests.helpers.processes.load import scaled
from tests.helpers.runs.raw_config import parse
from tests.helpers.runs.run_context import make_context

ID = "org/tape"


@pytest.fixture
def folder(raw_config: dict[str, Any]) -> RunFolder:
    """Train four steps, saving and exporting every second one. Returns the run directory."""
    raw_config["checkpoint"] = {"interval": 2}
    raw_config["export"] = {"interval": 2}
    return RunFolder(Path(raw_config["run"]["directory"]))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with served() as hub:
        yield hub


def pretrain(raw_config: dict[str, Any], *words: str, environment: dict[str, str] | None = None) -> str:
    """Train in a process, which must succeed, and return what it printed.

    Args:
        raw_config: Configuration as in JSON.
        words: Further words in the command.
        environment: Environment for the process, None to inherit this one's.
    """
    config = Path(raw_config["run"]["directory"]).with_suffix(".json")
    config.write_text(json.dumps(raw_config))
    process = subprocess.run(
        [sys.executable, "-m", "megatape", "pretrain", "--config", str(config), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(120),
    )
    assert process.returncode == 0, process.stdout
    return process.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in folder.exports.iterdir())


@pytest.mark.slow
def test_exports_equal_those_of_the_command(
    raw_config: dict[str, Any], folder: RunFolder, command: Command, tmp_path: Path
) -> None:
    """A run exports at each interval and after the last step, and waits for its exports."""
    raw_config["training"]["steps"] = 5
    printed = pretrain(raw_config)
    assert names(folder) == ["step-00000002", "step-00000004", "step-00000005"]
    for step in (2, 4, 5):
        assert f"exported step {step} to {folder.export(step)}" in printed
        assert command("export", folder.checkpoint(step), tmp_path / f"{step}")[0] == 0
        assert contents(folder.export(step)) == contents(tmp_path / f"{step}")


@pytest.mark.slow
def test_a_restarted_run_makes_up(raw_config: dict[str, Any], folder: RunFolder) -> None:
    """A run exports what an earlier process failed to export, removing exports of steps that it repeats."""
    export = raw_config.pop("export")
    pretrain(raw_config)
    assert not folder.exports.exists()
    raw_config["export"] = export
    pretrain(raw_config, "--resume", "auto")
    assert names(folder) == ["step-00000002", "step-00000004"]

    before = load_file(folder.export(4) / "model.safetensors")
    raw_config["optimizer"]["learning_rate"] *= 2
    shutil.rmtree(folder.checkpoint(4))
    pretrain(raw_config, "--resume", str(folder.checkpoint(2)))
    assert names(folder) == ["step-00000002", "step-00000004"]
    after = load_file(folder.export(4) / "model.safetensors")
    assert any(not after[name].equal(before[name]) for name in before)


@pytest.mark.slow
def test_exports_are_uploaded(raw_config: dict[str, Any], folder: RunFolder, hub: Hub, tmp_path: Path) -> None:
    raw_config["export"]["push"] = ID
    environment = online_environment(
        HF_ENDPOINT=hub.address,
        HF_HOME=str(tmp_path / "home"),
        HF_TOKEN="hf_token",
        HF_HUB_DISABLE_XET="1",
    )
    printed = pretrain(raw_config, environment=environment)
    assert f"exported step 4 to {folder.export(4)}, and uploaded it to {ID}" in printed
    assert hub.repositories[ID].private
    assert hub.repositories[ID].files == contents(folder.export(4))


@pytest.mark.slow
def test_a_failed_export_does_not_end_the_run(raw_config: dict[str, Any], folder: RunFolder) -> None:
    folder.exports.mkdir(parents=True)
    folder.export(2).write_text("not an export")
    printed = pretrain(raw_config)
    log = folder.exports / "step-00000002.log"
    assert f"warning: {folder.checkpoint(2)} was not exported: its process ended with status 2, see {log}" in printed
    assert f"{folder.export(2)} exists" in log.read_text()
    assert names(folder) == ["step-00000002", "step-00000002.log", "step-00000004"]


def test_a_push_without_a_token_is_refused_before_training(
    raw_config: dict[str, Any], folder: RunFolder, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_config["export"]["push"] = ID
    config = tmp_path / "run.json"
    config.write_text(json.dumps(raw_config))
    # Other tests in this process may have put the client offline.
    use_hub(monkeypatch, "http://localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no token"))
    assert_refused(command("pretrain", "--config", config), f"{ID}: no access token for")
    assert not folder.checkpoints.exists()


def test_a_stopped_run_ends_its_export(tmp_path: Path) -> None:
    """When stopping a run, a scheduler gives it little time. The checkpoint is exported after the next start."""
    folder = RunFolder(tmp_path)
    folder.checkpoint(1).mkdir(parents=True)
    context = make_context(parse(export={"interval": 1}, checkpoint={"interval": 1}), folder)
    exports = Exports(context)
    exports.on_start(0)
    exports.on_checkpoint(folder.checkpoint(1))
    assert names(folder) == ["step-00000001.log"]
    exports.close()
    assert names(folder) == []
