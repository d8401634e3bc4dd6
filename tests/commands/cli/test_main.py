"""All commands: help and errors without torch, text on any terminal, and the scripts calling the commands.

Failing commands are tested as well: messages with flags, exit statuses, and tracebacks of errors that no user can correct.
"""

import argparse
import errno
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from megatape.commands import evaluate, generate
from megatape.commands.cli import main, running
from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.command import load_command
from megatape.commands.cli.command_line import command_line
from megatape.commands.cli.output import print_paragraphs
from megatape.commands.cli.parser import Parser
from megatape.commands.cli.running import name_flags, run_command
from megatape.commands.cli.table import COMMANDS, is_group
from megatape.commands.study.options import RunsOptions
from megatape.errors import MissingPath, UserError
from megatape.registry import RULES, SOURCES
from megatape.utils import software
from tests.helpers.checks.command_options import Options
from tests.helpers.processes.command import Command
from tests.helpers.processes.without_torch import errors_without_torch
from tests.helpers.processes.workers import ROOT

LEAVES = [name for name in COMMANDS if not is_group(name)]
NOWHERE = ["--config", "nowhere.json"]
# A user's mistake, and part of the one-line error.
BAD_INPUT: dict[str, tuple[list[str], str]] = {
    "pretrain": (NOWHERE, "no configuration at nowhere.json"),
    "plan": (NOWHERE, "no configuration at nowhere.json"),
    "preflight": (NOWHERE, "no configuration at nowhere.json"),
    "submit": ([*NOWHERE, "--nodes", "1", "--gpus-per-node", "1"], "no configuration at nowhere.json"),
    "supervise": ([*NOWHERE, "--restarts", "1", "--", "true"], "no configuration at nowhere.json"),
    "prepare corpus": (["--source", "c4", "--output", "out"], "--source c4 needs --input"),
    "prepare addition": (["--digits", "0", "--output", "out"], "--digits: must be greater than or equal to 1, got 0"),
    "prepare finetuning": (
        ["--format", "pairs", "--input", "a", "--tokenizer", "nowhere", "--sequence-length", "8", "--output", "out"],
        "nowhere: no such tokenizer",
    ),
    "data report": (["nowhere"], "nowhere is not a data directory"),
    "data status": (["nowhere"], "nowhere.partial: not found, so nothing is being prepared there"),
    "data where": (["nowhere", "--token", "0"], "nowhere is not a data directory"),
    "data merge": (["out", "nowhere"], "nowhere is not a data directory"),
    "data subset": (["nowhere", "--output", "out"], "nowhere is not a data directory"),
    "data import": (
        ["--format", "flat", "--input", "a", "--tokenizer", "nowhere", "--output", "out"],
        "nowhere: no such tokenizer",
    ),
    "data export": (["nowhere", "--format", "flat", "--output", "out"], "nowhere is not a data directory"),
    "data tiktoken": (["nowhere", "--output", "out"], "encoding 'nowhere' is unknown"),
    "data tokenizer": (["--source", "python", "--output", "nowhere/file"], "no folder nowhere: create it"),
    "import": (["nowhere", "out"], "nowhere: no such folder"),
    "export": (["nowhere", "out"], "nowhere: no such folder"),
    "average": (["nowhere", "elsewhere", "--output", "average"], "nowhere: no such folder"),
    "branch": (["nowhere", "--decay-tokens", "100"], "nowhere: no such folder"),
    "generate": (["nowhere", "--prompt", "a"], "nowhere: no such folder"),
    "evaluate": (["addition", "nowhere", "--data", "nowhere", "--output", "out"], "nowhere: no such folder"),
    "scores": (["nowhere", "--scrolls", "nowhere", "--set", "qasper"], "nowhere: no such file of predictions"),
    "ledger": (["nowhere"], "nowhere: give a run directory"),
    "monitor": (["nowhere", "--once"], "nowhere: give the folder of a run"),
    "report": (["nowhere", "--output", "out"], "nowhere: give the folder of a run"),
    "benchmark roofline": (["--gpu", "h9000"], "GPU 'h9000' is unknown"),
    "benchmark gpu": (["--out", "out", "--device", "cpu"], "--device cpu takes hours at these sizes: add --tiny"),
    "init": (["tape_tny"], "no configuration tape_tny: did you mean tape_tiny?"),
    "constraints": (["--unknown"], "--unknown is not an option"),
    "completion": (["csh"], "shell: must be 'bash', 'zsh' or 'fish', got 'csh'"),
    "benchmark efficiency": (NOWHERE, "no configuration at nowhere.json"),
    "study shift": (["nowhere"], "nowhere: no such folder"),
    "study attention": (["nowhere", "--out", "a.png"], "nowhere: no such folder"),
    "study compare": ([*NOWHERE, "--encodings", "rope", "--out", "out"], "no configuration at nowhere.json"),
    "study suite": (["--tasks", "nothing", "--out", "out"], "--tasks: 'nothing' is not a task"),
    "study finetune": (["--base", "nowhere", "--data", "nowhere", "--out", "out"], "nowhere: no such folder"),
    "benchmark loader": (["--data", "nowhere"], "nowhere is not a data directory"),
    "benchmark memory": (["--unknown"], "--unknown is not an option"),
    "benchmark serving": (NOWHERE, "no configuration at nowhere.json"),
    "benchmark preparation": (["--source", "c4"], "--source c4 needs --input"),
}


def bad_command(name: str) -> list[str]:
    """Return the words of a command with a user's mistake."""
    words, _ = BAD_INPUT[name]
    return [*name.split(), *words]


@pytest.mark.parametrize("name", LEAVES)
def test_bad_input_is_one_line(name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, message = BAD_INPUT[name]
    status, printed, errors = command(*bad_command(name))
    assert (status, printed, errors.count("\n")) == (2, "", 1), errors
    assert errors.startswith("error: ")
    assert message in errors
    assert not list(tmp_path.iterdir())


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
        ('study suite --out a --slurm "--partition \'x"', '--slurm is "--partition \'x": No closing quotation'),
        ('study suite --out a --launcher "python \'x"', '--launcher is "python \'x": No closing quotation'),
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


# Prints the help of every command, gives a missing configuration to each that takes one, and lists the heavy packages imported.
WITHOUT_TORCH = """
import json, sys
from megatape.commands.cli.main import main
for words in json.loads(sys.argv[1]):
    try:
        status = main(words)
    except SystemExit as stop:
        status = stop.code
    expected = 2
    if words[-1] == "--help":
        expected = 0
    assert status == expected, words
heavy = ("torch", "transformers", "deepspeed", "datasets", "backports.zstd", "isal", "orjson")
print("imported:", *[name for name in heavy if name in sys.modules])
"""


def test_help_and_config_errors_import_little(tmp_path: Path) -> None:
    helps = [["--help"]] + [[*name.split(), "--help"] for name in COMMANDS]
    config_errors = [bad_command(name) for name, (words, _) in BAD_INPUT.items() if "nowhere.json" in words]
    program = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(helps + config_errors)]
    process = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "imported:"
    assert process.stderr.count("no configuration at nowhere.json") == len(config_errors)


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "runs/f\\xfcr\\udcff\n"), ("utf-8", "runs/für\\udcff\n")], ids=["ascii", "utf-8"]
)
def test_any_text_can_be_printed(encoding: str, shown: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text has umlauts on an ASCII terminal, and file names that are not valid text."""

    def fail(options: object) -> int:
        print("runs/für\udcff")
        raise UserError("runs/für\udcff")

    monkeypatch.setattr(generate, "run", fail)
    # Python opens the streams with these error handlers.
    stdout = io.TextIOWrapper(io.BytesIO(), encoding, "strict")
    stderr = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)

    status, _, _ = command("generate", "folder", "--prompt", "a")

    assert status == 2
    stdout.seek(0)
    stderr.seek(0)
    assert stdout.read() == shown
    assert stderr.read() == f"error: {shown}"


@pytest.mark.parametrize(
    "words", [["--local_rank=1", "pretrain"], ["pretrain", "--local_rank=1"], ["preflight", "--local_rank=1"]], ids=" ".join
)
def test_deepspeed_adds_the_local_rank_before_or_after_the_command(words: list[str], command: Command) -> None:
    status, _, errors = command(*words, *NOWHERE)
    assert status == 2
    assert "no configuration at nowhere.json" in errors


def test_deepspeed_adds_the_local_rank_to_an_evaluation(command: Command) -> None:
    words, message = BAD_INPUT["evaluate"]
    status, _, errors = command("evaluate", "--local_rank=1", *words)
    assert status == 2
    assert message in errors


SCRIPTS = [*(ROOT / "launch").rglob("*.py"), *(ROOT / "data_prep").rglob("*.py")]
SHIMS = sorted(path for path in SCRIPTS if path.stem not in ("quickstart", "learned"))


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-documents 0", "--max-documents: must be greater than or equal to 1, got '0'"),
        ("--steps 2147483648", "--steps: must be less than or equal to 2147483647, got '2147483648'"),
        ("--steps few", "--steps: must be a valid integer, unable to parse string as an integer, got 'few'"),
        ("--share nan", "--share: must be a finite number, got 'nan'"),
        ("--share half", "--share: must be a valid number, unable to parse string as a number, got 'half'"),
        ("--lengths 1,0", "--lengths: must be greater than or equal to 1, got '0'"),
        ("--mode medium", "--mode: must be 'fast' or 'slow', got 'medium'"),
        ("--dry-run 0", "--dry-run: must be greater than or equal to 1, got '0'"),
    ],
)
def test_values_are_checked_by_their_types(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser()
    add_options(parser, Options)
    assert run_command(Options, lambda options: 0, parser.parse_args(["a", *words.split()])) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_documents is 0: give more", "--max-documents is 0: give more"),
        ("max_documents: unknown", "--max-documents: unknown"),
        ("steps 3 are few", "--steps 3 are few"),
        ("files is missing: give some", "--files is missing: give some"),
        ("files a/b are of the checkpoint", "files a/b are of the checkpoint"),
        ("give `dry_run` or `other`", "give --dry-run or `other`"),
        ("maximum is 0, of max_documents", "maximum is 0, of max_documents"),
        ("folder is missing", "folder is missing"),
        ("steps.py is missing", "steps.py is missing"),
    ],
)
def test_messages_show_flags(message: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: Options) -> int:
        raise UserError(message)

    arguments = argparse.Namespace(folder="a", max_documents="3")
    assert name_flags(Options, message, vars(arguments)) == shown
    assert run_command(Options, run, arguments) == 2
    assert capsys.readouterr().err == f"error: {shown}\n"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("a value"), 2, "error: a value\n"),
        (MissingPath("a file"), 2, "error: a file\n"),
        (ChildProcessError("a run"), 1, "error: a run\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
            2,
            "error: 'a\\udcff' is not UTF-8, as a library needs it: rename it\n",
        ),
        (ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"), 2, '-e ".[plots]"\n'),
        (ModuleNotFoundError("No module named 'rouge_score'", name="rouge_score"), 2, '-e ".[rouge]"\n'),
    ],
)
def test_statuses(error: BaseException, status: int, message: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: object) -> int:
        raise error

    monkeypatch.setattr(generate, "run", fail)
    exit_status, printed, errors = command("generate", "folder", "--prompt", "a")
    assert (exit_status, printed) == (status, "")
    assert errors.endswith(message)


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


def test_an_interrupted_command_that_goes_on_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def paragraphs() -> Iterator[str]:
        yield "the first of two"
        raise KeyboardInterrupt

    def run(options: RunsOptions) -> None:
        print_paragraphs(paragraphs())

    assert run_command(RunsOptions, run, argparse.Namespace(out="a")) == 130
    printed = capsys.readouterr()
    assert printed.out == "the first of two\n\n"
    assert printed.err == "interrupted; run the same command again to continue\n"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("too many values"),
        OSError(errno.EIO, "disk"),
        KeyError("name"),
        UnicodeEncodeError("ascii", "ä", 0, 1, "ordinal not in range(128)"),
    ],
)
def test_other_errors_keep_their_traceback(error: Exception, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "run", Mock(side_effect=error))
    with pytest.raises(type(error)) as caught:
        command("generate", "folder", "--prompt", "a")
    assert caught.value is error


@pytest.mark.parametrize(("local_rank", "waits"), [("0", []), ("1", [call(running.FIRST_RANK_LEAD)])])
def test_the_first_rank_of_a_host_shows_an_error_first(
    local_rank: str, waits: list[Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks can fail before they know of each other. The first rank shows the error while the others wait."""
    sleep = Mock()
    monkeypatch.setattr(running, "time", Mock(sleep=sleep))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    status, _, errors = command("pretrain", "--config", "nowhere.json")
    assert status == 2
    assert sleep.mock_calls == waits
    assert errors.startswith("error: no configuration at nowhere.json")


def test_our_own_bugs_are_not_hidden(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: object) -> int:
        raise ModuleNotFoundError("No module named 'megatape.gone'", name="megatape.gone")

    monkeypatch.setattr(generate, "run", fail)
    with pytest.raises(ModuleNotFoundError):
        command("generate", "folder", "--prompt", "a")


def test_a_reader_that_ends_ends_the_command_quietly() -> None:
    """This happens in `megatape completion bash | head`."""
    program = [sys.executable, "-m", "megatape", "completion", "bash"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_another_broken_pipe_keeps_its_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "run", Mock(side_effect=BrokenPipeError("a worker's")))
    with pytest.raises(BrokenPipeError, match="a worker's"):
        command("generate", "exported", "--prompt", "a")


def test_missing_folders_and_tasks_are_found_before_torch_is_imported(tmp_path: Path) -> None:
    """Importing torch takes many seconds. A user must not wait for it only to read that a name is misspelled."""
    pytest.importorskip("lm_eval")
    (tmp_path / "model").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.yaml").write_text("task: task_of_ours\n")
    lm_eval = ["evaluate", "lm-eval", "model", "--output", "evaluated", "--tasks"]
    missing_folder = "nowhere: no such folder: give "
    cases = [(bad_command(name), missing_folder) for name in ("generate", "export", "average", "branch", "import", "evaluate")]
    cases += [
        (["generate", "model", "--adapter", "nowhere", "--prompt", "a"], missing_folder),
        (["export", "model", "own"], "own exists: remove it or choose another name"),
        ([*lm_eval, "arc_eazy"], "--tasks: lm-eval has no 'arc_eazy', but arc_easy"),
        ([*lm_eval, "arc_easy,task_of_ours"], "--tasks: lm-eval has no 'task_of_ours'"),
        ([*lm_eval, "ruler"], "--tasks: ruler of lm-eval needs text lengths"),
        (
            [*lm_eval, "arc_easy,mmlu,task_of_ours,arc_eazy", "--include", "own"],
            "--tasks: lm-eval has no 'arc_eazy', but arc_easy",
        ),
    ]
    errors = errors_without_torch([words for words, _ in cases], tmp_path)
    for (words, message), error in zip(cases, errors, strict=True):
        assert message in error, words
