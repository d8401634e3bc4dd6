"""Files of the project in clones and wheels, and their differences."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatape.utils.files import project_files
from megatape.utils.files.project_files import install_command, project_file
from tests.helpers.processes.command import Command
from tests.helpers.processes.load import scaled
from tests.helpers.processes.workers import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package as in a wheel."""
    source = tmp_path_factory.mktemp("source")
    built = tmp_path_factory.mktemp("built")
    for name in ("megatape", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "constraints.txt", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(built)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=scaled(120))
    return built / "megatape"


def test_a_wheel_has_constraints_and_configurations(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("configs", "constraints.txt"):
        assert project_file(name) == ROOT / name
    monkeypatch.setattr(project_files, "IN_WHEEL", built / "project")
    assert project_file("constraints.txt").read_bytes() == (ROOT / "constraints.txt").read_bytes()
    listed, expected = (
        {str(path.relative_to(root)) for path in root.rglob("*.json")} for root in (project_file("configs"), ROOT / "configs")
    )
    assert listed == expected
    assert "finetune/tape_tiny.json" in listed
    assert install_command("suite") == 'pip install "megatape[suite]"'


def test_commands_that_write_these_files(
    built: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(project_files, "IN_WHEEL", built / "project")
    monkeypatch.chdir(tmp_path)
    assert command("constraints") == (0, (ROOT / "constraints.txt").read_text(), "")
    status, printed, _ = command("init")
    assert status == 0
    assert {"tape_tiny", "finetune/tape_tiny"} < {*printed.splitlines()}
    assert command("init", "finetune/tape_tiny")[0] == 0
    assert Path("tape_tiny.json").read_bytes() == (ROOT / "configs/finetune/tape_tiny.json").read_bytes()
    status, _, errors = command("init", "tape_tiny")
    assert status == 2
    assert "tape_tiny.json exists" in errors
    assert command("init", "tape_tiny", "--output", "b.json")[0] == 0
    assert command("plan", "--config", "b.json")[0] == 0
