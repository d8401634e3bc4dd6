"""Options classes: the parser that is made of them, the checks of values by their types, and flags in messages."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from megatape.commands.execute import name_flags, run_command
from megatape.commands.parser import add_options
from megatape.commands.reference import reference
from megatape.errors import UserError
from megatape.options import CommandOptions, Count, Listed, option, read_options
from tests.workers import ROOT


class Options(CommandOptions):
    """One field of each form."""

    at_most_one = (("steps", "lengths"),)

    folder: Path = option("a folder", positional=True, metavar="FOLDER")
    max_documents: int | None = option("at 100% at most", None, ge=1, metavar="N")
    steps: Count = option("steps", 3)
    share: float = option("a share", 0.5)
    lengths: Listed[Count] = option("lengths", (8, 16), metavar="N,N")
    files: tuple[Path, ...] = option("files", ())
    rule: tuple[str, ...] = option("rules", (), repeatable=True)
    mode: Literal["fast", "slow"] = option("a mode", "fast")
    dry_run: Count | None = option("a number of documents, or none", None, nargs="?", const="1000")
    verbose: bool = option("more", False)
    typed: str = ""


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="program")
    add_options(parser, Options)
    return parser


def read(parser: argparse.ArgumentParser, *words: str) -> Options:
    return read_options(Options, vars(parser.parse_args(words, argparse.Namespace(typed="words"))))


def test_values_have_the_types_of_their_fields(parser: argparse.ArgumentParser) -> None:
    usual = {"max_documents": None, "steps": 3, "share": 0.5, "lengths": (8, 16), "files": (), "rule": (), "mode": "fast"}
    assert read(parser, "a").model_dump() == usual | {"folder": Path("a"), "dry_run": None, "verbose": False, "typed": "words"}
    words = "a --max-documents 5 --share 1e-3 --lengths 1,2 --files b c --rule d --rule e --mode slow --dry-run --verbose"
    options = read(parser, *words.split())
    assert (options.max_documents, options.share, options.lengths) == (5, 1e-3, (1, 2))
    assert (options.files, options.rule, options.mode) == ((Path("b"), Path("c")), ("d", "e"), "slow")
    assert (options.dry_run, options.verbose) == (1000, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-documents 0", "--max-documents: must be at least 1, got 0"),
        ("--steps 2147483648", "--steps: must be at most 2147483647, got 2147483648"),
        ("--steps few", "--steps: expected an integer, got few"),
        ("--share nan", "--share: expected a number, got nan"),
        ("--share half", "--share: expected a number, got half"),
        ("--lengths 1,0", "--lengths: must be at least 1, got 0"),
        ("--mode medium", "--mode: must be 'fast' or 'slow', got medium"),
        ("--dry-run 0", "--dry-run: must be at least 1, got 0"),
    ],
)
def test_values_are_checked_by_their_types(
    parser: argparse.ArgumentParser, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(Options, lambda options: 0, parser.parse_args(["a", *words.split()])) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_help_comes_from_the_fields(parser: argparse.ArgumentParser) -> None:
    text = " ".join(parser.format_help().split())
    assert "--max-documents N at 100% at most" in text and "--lengths N,N lengths (default 8,16)" in text
    assert "--mode {fast,slow} a mode (default fast)" in text and "[--steps STEPS | --lengths N,N]" in text
    assert "typed" not in text


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_documents is 0: give more", "--max-documents is 0: give more"),
        ("max_documents: unknown", "--max-documents: unknown"),
        ("give `dry_run` or `other`", "give --dry-run or `other`"),
        ("maximum is 0, of max_documents", "maximum is 0, of max_documents"),
        ("folder is missing", "folder is missing"),
        ("steps.py is missing", "steps.py is missing"),
    ],
)
def test_messages_show_flags(message: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(options: Options) -> int:
        raise UserError(message)

    assert name_flags(Options, message) == shown
    assert run_command(Options, run, argparse.Namespace(folder="a")) == 2
    assert capsys.readouterr().err == f"error: {shown}\n"


def test_a_call_is_filled_by_name() -> None:
    @dataclass
    class Part:
        steps: int
        rule: tuple[str, ...]
        other: str = "usual"

    def work(folder: str, steps: int, number: int = 3) -> tuple[str, int, int]:
        return folder, steps, number

    values: dict[str, Any] = {"folder": "a", "steps": "7", "rule": ["b"]}
    options = read_options(Options, values)
    assert options.fill(Part) == Part(7, ("b",))
    assert options.fill(work, folder="c") == ("c", 7, 3)


def test_page_of_commands_is_up_to_date() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    assert page == reference(), "run: python -m megatape.commands.reference > docs/commands.md"
