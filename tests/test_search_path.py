"""Commands and their child processes import no module from the current directory, however they are started."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from megatape.search_path import drop_start_folders, named_folders
from tests.helpers.checks.import_graph import ROOT
from tests.helpers.processes.load import scaled
from tests.helpers.processes.planted import fresh_environment, plant, planted_that_ran

# The program installed by pip for `megatape`
CONSOLE_SCRIPT = "import sys\nfrom megatape.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Words of a command that starts workers, and a child process for pyarrow."""
    inputs = []
    for number in range(2):
        texts = [f"text {number} of many, {line}" for line in range(60)]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{number}.parquet")
        inputs.append(str(tmp_path / f"{number}.parquet"))
    options = ["--vocab-size", "280", "--validation-share", "0.2", "--workers", "2", "--output", str(tmp_path / "out")]
    return ["--source", "parquet", "--input", *inputs, *options]


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=scaled(60))


@pytest.mark.parametrize("start", ["console script", "-m", "launch script", "path", "path with an empty PYTHONSAFEPATH"])
def test_planted_modules_do_not_run(start: str, words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "bin/megatape"
    script.parent.mkdir()
    script.write_text(CONSOLE_SCRIPT)
    starts = {
        "console script": [str(script), "prepare", "corpus"],
        "-m": ["-m", "megatape", "prepare", "corpus"],
        "launch script": [str(ROOT / "data_prep/prepare_corpus.py")],
        "path": [str(ROOT / "megatape/__main__.py"), "prepare", "corpus"],
    }
    folder = tmp_path / "model"
    plant(folder)
    # Python takes the empty last entry of PYTHONPATH as the current directory.
    environment = fresh_environment(PYTHONPATH=f"{ROOT}:")
    if "empty" in start:
        environment["PYTHONSAFEPATH"] = ""
    done = _run([sys.executable, *starts[start.partition(" with ")[0]], *words], folder, environment)
    assert (done.returncode, planted_that_ran(folder)) == (0, ""), done.stderr
    assert (tmp_path / "out/index.json").exists()


@pytest.mark.parametrize("start", ["-m megatape prepare corpus", "data_prep/prepare_corpus.py"])
def test_a_clone_that_is_not_installed_starts(start: str, words: list[str], tmp_path: Path) -> None:
    """The package is found in the current directory, in child processes as well, and no other module is."""
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "megatape", clone / "megatape")
    shutil.copytree(ROOT / "data_prep", clone / "data_prep")
    plant(clone)
    libraries = [folder for folder in sys.path if "site-packages" in folder]
    environment = fresh_environment(PYTHONPATH=os.pathsep.join(libraries))
    is_found = "import importlib.util, sys; sys.exit(importlib.util.find_spec('megatape') is not None)"
    without_site = [sys.executable, "-S"]  # hides an editable installation
    assert _run([*without_site, "-c", is_found], tmp_path, environment).returncode == 0
    done = _run([*without_site, *start.split(), *words], clone, environment)
    assert (done.returncode, planted_that_ran(clone)) == (0, ""), done.stderr
    assert (tmp_path / "out/index.json").exists()


def test_only_named_folders_of_the_start_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user may name the current directory on PYTHONPATH. DeepSpeed adds it unasked on several hosts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(sys, "argv", ["scripts/start.py"])
    here = str(tmp_path)
    script = str(tmp_path / "scripts")
    other = "/other"
    library = "/library"

    def left(path_variable: str, before: list[str]) -> list[str]:
        monkeypatch.setenv("PYTHONPATH", path_variable)
        monkeypatch.setattr(sys, "path", [*before, library])
        drop_start_folders()
        return sys.path

    assert left("", [""]) == left("", [here]) == left("", [script]) == [library]
    assert left(f":{other}", [script, here, other]) == [other, library]
    assert os.environ["PYTHONPATH"] == other
    assert left(f"{here}:{other}", [here, here, other]) == [here, here, other, library]
    monkeypatch.setenv("CROSS_SIZE", "2")
    assert left(f"{here}:{other}", [here, other]) == [other, library]
    assert named_folders() == [other]
    monkeypatch.setenv("PYTHONPATH", f"{here}:{here}")
    assert named_folders() == [here]
