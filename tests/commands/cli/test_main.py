"""The command line: help, unknown words, the version, and the scripts that call commands."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from megatape import software
from megatape.commands import evaluate
from megatape.commands.cli import main
from megatape.commands.cli.command import load_command
from megatape.commands.cli.command_line import command_line
from megatape.commands.cli.table import COMMANDS, is_group
from megatape.registry import RULES, SOURCES
from tests.helpers.processes.command import Command
from tests.helpers.processes.workers import ROOT

LEAVES = [name for name in COMMANDS if not is_group(name)]
NOWHERE = ["--config", "nowhere.json"]


def test_the_commands_fit_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """The help has at most 80 columns and 40 lines, and each command has its own line below its use."""
    with pytest.raises(SystemExit):
        main.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= 80
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert listed == [name for name in COMMANDS if " " not in name]


@pytest.mark.parametrize("group", [name for name in COMMANDS if is_group(name)])
def test_the_commands_of_a_group_have_a_line_each(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main([*group.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    prefix = f"{group} "
    assert listed == [name.removeprefix(prefix) for name in COMMANDS if name.startswith(prefix)]


def test_help_lists_the_sources_and_rules_of_a_preparation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["prepare", "corpus", "--help"])
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    for name, entry in (SOURCES | RULES).items():
        assert [name, entry.description] in lines


@pytest.mark.parametrize("name", LEAVES)
def test_the_example_of_a_help_is_a_command(name: str) -> None:
    """The example's options exist and none is missing. A launcher's example starts the command's script."""
    words = shlex.split(load_command(name).example)
    if words[0] == "deepspeed":
        script = next(index for index, word in enumerate(words) if word.endswith(".py"))
        words[: script + 1] = ["megatape", Path(words[script]).stem]
    assert words[: len(name.split()) + 1] == ["megatape", *name.split()]
    args = command_line(words[1:]).parse_args(words[1:])
    if name == "evaluate":
        evaluate.parse_rest(evaluate.Options(tasks=args.tasks, rest=args.rest))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrian", "pretrian is not a command: did you mean pretrain?\n"),
        ("data wherre a", "wherre is not a command: did you mean where? choose one of report, "),
        ("--verson", "--verson is not an option: did you mean --version? see `megatape --help`"),
        ("plan --confg=a", "--confg is not an option: did you mean --config? see `megatape plan --help`"),
        (
            "generate a",
            "one of the arguments --prompt --prompts --interactive --chat is required: see `megatape generate --help`",
        ),
        ("pretrain a.json", "unexpected: a.json: did you mean --config a.json? see `megatape pretrain --help`"),
        ("plan a.json --gpu h100", "unexpected: a.json: did you mean --config a.json? see `megatape plan --help`"),
        ("pretrain a.json --config b.json", "unexpected: a.json: see `megatape pretrain --help`"),
        ("ledger a b", "unexpected: b: see `megatape ledger --help`"),
        ("evaluate passkey a --otput b", "--otput is not an option: did you mean --output? see `megatape evaluate passkey "),
        ('study suite --output a --slurm "--partition \'x"', '--slurm is "--partition \'x": No closing quotation'),
        ('study suite --output a --launcher "python \'x"', '--launcher is "python \'x": No closing quotation'),
        ("study suite --slurm '--time 3' --cell 1", "argument --cell: not allowed with argument --slurm: see "),
        ("plan --config a --gpu", "argument --gpu: expected one argument: see `megatape plan --help`"),
    ],
)
def test_unknown_words_get_their_nearest_match(words: str, message: str, command: Command) -> None:
    status, printed, errors = command(*shlex.split(words))
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: {message}")


@pytest.mark.parametrize("words", [[], ["data"]])
def test_a_command_that_is_missing_shows_the_help(words: list[str], command: Command, capfd: pytest.CaptureFixture) -> None:
    """The help is an error here: a script that lost its command must not continue."""
    with pytest.raises(SystemExit) as ended:
        command(*words)
    printed, errors = capfd.readouterr()
    assert (ended.value.code, printed) == (2, "")
    assert errors.startswith(f"usage: {' '.join(['megatape', *words])}")


@pytest.mark.parametrize(
    ("is_checkout", "pattern"),
    [(True, r"megatape \d\S+ \(commit [0-9a-f]{7,}(-dirty)?\)\n"), (False, r"megatape \d\S+\n")],
    ids=["checkout", "installed package"],
)
def test_version(
    command: Command,
    capfd: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_checkout: bool,
    pattern: str,
) -> None:
    """A checkout has a commit. An installed package has none, not even inside another project's checkout."""
    if not is_checkout:
        monkeypatch.setattr(software, "PACKAGE", tmp_path / "a")
    with pytest.raises(SystemExit) as ended:
        command("--version")
    assert ended.value.code == 0
    assert re.fullmatch(pattern, capfd.readouterr().out)


@pytest.mark.parametrize(
    "words", [["--local_rank=1", "pretrain"], ["pretrain", "--local_rank=1"], ["preflight", "--local_rank=1"]], ids=" ".join
)
def test_deepspeed_adds_the_local_rank_before_or_after_the_command(words: list[str], command: Command) -> None:
    status, _, errors = command(*words, *NOWHERE)
    assert status == 2
    assert "no configuration at nowhere.json" in errors


SCRIPTS = [*(ROOT / "launch").rglob("*.py"), *(ROOT / "data_prep").rglob("*.py")]
SHIMS = sorted(path for path in SCRIPTS if path.stem not in ("quickstart", "gpu_run", "learned"))


@pytest.mark.parametrize("path", SHIMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_of_a_clone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each script calls the command it names, with its own arguments, from the package of its clone."""
    called: list[list[str]] = []
    monkeypatch.setattr(main, "main", called.append)
    # A new process imports the program, which takes the folder of the script off sys.path.
    monkeypatch.delitem(sys.modules, "megatape.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", [str(path), "--some", "thing"])
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    with pytest.raises(SystemExit):
        runpy.run_path(str(path), run_name="__main__")
    match = re.match('"""`megatape ([a-z ]+)` ', path.read_text())
    assert match
    name = match[1]
    assert name in COMMANDS
    assert set(path.stem.split("_")) & set(name.split())
    assert called == [[*name.split(), "--some", "thing"]]
    assert sys.path == ["elsewhere"]
    parent = re.search(r"sys\.path\.insert\(0, .*parents\[(\d)\]", path.read_text())
    assert parent
    assert path.parents[int(parent[1])] == ROOT


def test_an_interrupt_while_options_are_read(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(words: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "command_line", interrupted)
    assert command("init") == (130, "", "interrupted\n")


def test_init_shows_the_next_command(command: Command, tmp_path: Path) -> None:
    status, printed, _ = command("init", "tape_tiny", "--output", tmp_path / "of mine.json")
    assert status == 0
    assert f"megatape plan --config '{tmp_path}/of mine.json'" in printed


def test_init_into_a_missing_folder_is_refused(command: Command, tmp_path: Path) -> None:
    status, _, errors = command("init", "tape_tiny", "--output", tmp_path / "nowhere" / "a.json")
    assert (status, errors.count("\n")) == (2, 1)
    assert "No such file or directory" in errors


def test_a_reader_that_ends_ends_the_command_quietly() -> None:
    """A command ends without an error if its reader ends first, as in `megatape completion bash | head`."""
    program = [sys.executable, "-m", "megatape", "completion", "bash"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
