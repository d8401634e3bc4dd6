"""launch/quickstart.py: the commands of its demonstrations, and the lines of DeepSpeed's log that it hides."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.workers import ROOT

# Lines of DeepSpeed 0.19.8 and of a run, and whether they are shown.
LINES = {
    "[2026-11-21 21:40:02,074] [WARNING] [real_accelerator.py:213:get_accelerator] Setting accelerator to CPU.": False,
    "[2026-11-21 21:40:06,528] [INFO] [launch.py:170:main] dist_world_size=2": False,
    "[2026-11-21 21:40:06,528] [ERROR] [launch.py:259:main] exits with return code = 2": True,
    "step  1/20 [#...................]  loss 8.3041": True,
    "error: no configuration at nowhere.json": True,
}


@pytest.fixture
def quickstart(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Namespace of launch/quickstart.py, with the programs of this interpreter's environment."""
    names = runpy.run_path(str(ROOT / "launch" / "quickstart.py"))
    monkeypatch.setitem(names["run"].__globals__, "BIN", Path(sys.executable).parent)
    return names


@pytest.mark.parametrize("verbose", [False, True])
def test_quickstart_hides_log_lines(quickstart: dict[str, Any], verbose: bool, capfd: pytest.CaptureFixture[str]) -> None:
    code = f"print(*{list(LINES)!r}, sep=chr(10))"
    quickstart["run"](Path(sys.executable).name, "-c", code, hidden=None if verbose else quickstart["DEEPSPEED_LOG"])
    assert capfd.readouterr().out.splitlines() == [line for line, shown in LINES.items() if shown or verbose]


def test_quickstart_on_c4(quickstart: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both demonstrations run the same commands, on other data. CI runs the one on Python's sources."""
    commands: list[tuple[str, ...]] = []
    for name in ("c4", "python"):
        (tmp_path / f"runs/tape_tiny_{name}/checkpoints/step-00000020").mkdir(parents=True)
    monkeypatch.setitem(quickstart["demo"].__globals__, "ROOT", tmp_path)
    monkeypatch.setitem(quickstart["demo"].__globals__, "run", lambda *words, hidden=None: commands.append(words))
    for folder in ("some/c4", None):
        quickstart["demo"](20, folder, False)
    lines = [" ".join(words) for words in commands]
    on_c4, on_python = "\n".join(lines[: len(lines) // 2]), "\n".join(lines[len(lines) // 2 :])
    assert "prepare corpus --source c4 --input some/c4 " in on_c4 and on_c4.endswith(" --prompt The")
    as_python = on_c4.replace("--input some/c4 ", "").replace("c4", "python").replace("--prompt The", "--prompt def read_file(")
    assert on_python == as_python
