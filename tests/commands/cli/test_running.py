"""Running a command: values and messages of options, exit statuses, and tracebacks of errors that no user can correct."""

import argparse
import errno
import io
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, call

import pytest

from megatape.commands import generate
from megatape.commands.cli import running
from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.output import print_paragraphs
from megatape.commands.cli.parser import Parser
from megatape.commands.cli.running import run_command
from megatape.commands.options.study_options import RunsOptions
from megatape.errors import MissingPath, UserError, flag
from tests.helpers.checks.command_options import Options
from tests.helpers.processes.command import Command


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
    ("message", "shown", "named"),
    [
        (f"{flag('max_documents')} is 0: give more", "--max-documents is 0: give more", "max_documents is 0: give more"),
        (f"give {flag('dry_run')} or `other`", "give --dry-run or `other`", "give `dry_run` or `other`"),
        (f"task a: {flag('steps')} 3", "task a: --steps 3", "task a: `steps` 3"),
        # Options without a flag: a positional one, and one from another command
        (f"{flag('folder')} is missing, give {flag('folder')}", "folder is missing, give `folder`", None),
        (f"{flag('other')} is missing", "other is missing", None),
        # Unmarked words: a part of a checkpoint, and a field in a record
        ("files a/b are of the checkpoint", "files a/b are of the checkpoint", None),
        ("the record has no `files`", "the record has no `files`", None),
        ("steps.py is missing", "steps.py is missing", None),
    ],
)
def test_messages_show_flags(message: str, shown: str, named: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: Options) -> int:
        raise UserError(message)

    arguments = argparse.Namespace(folder="a", max_documents="3")
    assert run_command(Options, run, arguments) == 2
    assert capsys.readouterr().err == f"error: {shown}\n"
    assert str(UserError(message)) == (named or shown)


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


def test_an_interrupted_command_that_goes_on_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def paragraphs() -> Iterator[str]:
        yield "the first of two"
        raise KeyboardInterrupt

    def run(options: RunsOptions) -> None:
        print_paragraphs(paragraphs())

    assert run_command(RunsOptions, run, argparse.Namespace(output="a")) == 130
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


def test_another_broken_pipe_keeps_its_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "run", Mock(side_effect=BrokenPipeError("a worker's")))
    with pytest.raises(BrokenPipeError, match="a worker's"):
        command("generate", "exported", "--prompt", "a")
