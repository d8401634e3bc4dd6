"""Completion in the installed shells. The scripts start no Python."""

import shutil
import subprocess
from pathlib import Path

import pytest

from megatape.commands.cli.table import COMMANDS
from tests.helpers.processes.command import Command

pytest.importorskip("shtab")
SHELLS = ("bash", "zsh", "fish")
# Completes the words in $@, like bash on a terminal
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_megatape megatape "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
echo "${COMPREPLY[*]}"
"""


@pytest.fixture(params=SHELLS)
def script(request: pytest.FixtureRequest, command: Command, tmp_path: Path) -> Path:
    status, text, _ = command("completion", request.param)
    assert status == 0
    path = tmp_path / f"script.{request.param}"
    path.write_text(text)
    return path


def test_all_commands_are_completed(script: Path) -> None:
    """Installed shells also check the syntax of their script."""
    words = script.read_text()
    missing = [name for name in COMMANDS if any(word not in words for word in name.split())]
    assert missing == []
    assert "gpus-per-node" in words
    shell = script.suffix.removeprefix(".")
    if shutil.which(shell):
        subprocess.run([shell, "-n", script], check=True)


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["pre"], "pretrain preflight prepare"),
        (["data", "re"], "report"),
        (["plan", "--gpu"], "--gpus-per-node --gpu"),
        (["import", "model", "out", "--encoding", "rop"], "rope rope_conv"),
        (["plan", "--config", "con"], "config.json"),
        (["evaluate", "pe"], "perplexity"),
        (["study", "compare", "--encodings", "tape_f"], "tape_fox"),
        (["plan", "--gpu", "h2"], "h200"),
    ],
)
def test_bash(script: Path, words: list[str], wanted: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "another").touch()
    ended = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", script, "megatape", *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert sorted(ended.stdout.split()) == sorted(wanted.split())
