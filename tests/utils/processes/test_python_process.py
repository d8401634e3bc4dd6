"""Child Python processes of the package import no module from the current directory."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from megatape.attention.backend import AttentionRequirements
from megatape.imports import import_given
from megatape.lab.processes import child, finish
from megatape.model.smoke_test import SmokeTest
from megatape.model.smoke_test_child import smoke_test_in_child
from megatape.run_folder import RunFolder
from megatape.tools.cluster.supervise.supervised_command import SupervisedCommand
from megatape.tools.cluster.supervise.supervisor import supervise
from megatape.utils.processes.python_process import child_environment, launcher_environment, python_command
from tests.helpers.checks.import_graph import ROOT
from tests.helpers.processes.planted import planted_that_ran


@pytest.fixture(autouse=True)
def nothing_planted_runs(planted_folder: Path) -> Iterator[None]:
    yield
    assert not planted_that_ran(planted_folder)


def test_a_trial_of_a_backend() -> None:
    need = AttentionRequirements("cpu", False, "none", 16, torch.float32, masked=False)
    test = SmokeTest(2, 16, 40, torch.device("cpu"))
    assert smoke_test_in_child("sdpa", [need], test) is None


def test_a_child_of_a_benchmark_or_study() -> None:
    with child([sys.executable, "-c", "import json; print('no json.py of here')"]) as process:
        assert finish(process) == "no json.py of here\n"
    with child(python_command("--import", "json")) as process:
        assert finish(process) == ""
    with child(python_command("megatape.commands.cli.main", "--version")) as process:
        assert finish(process).startswith("megatape ")


def test_a_supervised_command(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import json, megatape"]
    assert supervise(partial(SupervisedCommand, command), RunFolder(tmp_path / "run"), restarts=0) == 0


def test_children_find_what_the_parent_was_given(own_modules: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children find modules given by --import, those on PYTHONPATH, and the package even if it is not installed."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "own_part.py").write_text("print('own part')\n")
    monkeypatch.syspath_prepend(modules)
    import_given("own_part")
    with child(python_command("--import", "json")) as process:
        assert finish(process) == "own part\n"
    monkeypatch.setenv("PYTHONPATH", f":/named:{modules}")
    assert child_environment({"A": "b"})["A"] == "b"
    assert child_environment()["PYTHONPATH"] == f"{modules}:/named"
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "site-packages" in folder or folder == str(modules)])
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if "PathFinder" in repr(finder)])
    assert launcher_environment(["deepspeed", "--module", "megatape"])["PYTHONPATH"] == f"{ROOT}:{modules}:/named"
    assert launcher_environment(["deepspeed", "launch/pretrain.py"])["PYTHONPATH"] == f"{modules}:/named"


@pytest.mark.parametrize(("exported", "expected"), [("", ",1\n"), (None, "1,1\n")])
def test_the_user_may_keep_the_search_path(exported: str | None, expected: str) -> None:
    """With an empty PYTHONSAFEPATH, a user's script under supervision can import its neighbors; our own children cannot."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    if exported is not None:
        environment["PYTHONSAFEPATH"] = exported
    code = (
        "import os, subprocess, sys; from megatape.search_path import drop_start_folders; drop_start_folders();"
        "from megatape.utils.processes.python_process import child_environment, launcher_environment;"
        "print(launcher_environment(['script.py'])['PYTHONSAFEPATH'], child_environment()['PYTHONSAFEPATH'], sep=',')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout == expected, done.stderr
