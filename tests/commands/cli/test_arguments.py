"""Arguments made from the fields of options."""

import argparse
from pathlib import Path

import pytest

from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.parser import Parser
from megatape.utils.values.options import CommandOptions, read_options
from tests.helpers.checks.command_options import Options


@pytest.fixture
def parser() -> Parser:
    parser = Parser(prog="program")
    add_options(parser, Options)
    return parser


def read(parser: Parser, *words: str) -> Options:
    return read_options(Options, vars(parser.parse_args(words, argparse.Namespace(typed="words"))))


def test_values_have_the_types_of_their_fields(parser: Parser) -> None:
    usual = {"max_documents": None, "steps": 3, "share": 0.5, "lengths": (8, 16), "files": (), "rule": (), "mode": "fast"}
    assert read(parser, "a").model_dump() == usual | {"folder": Path("a"), "dry_run": None, "verbose": False, "typed": "words"}
    words = "a --max-documents 5 --share 1e-3 --lengths 1,2 --files b c --rule d --rule e --mode slow --dry-run --verbose"
    options = read(parser, *words.split())
    assert (options.max_documents, options.share, options.lengths) == (5, 1e-3, (1, 2))
    assert (options.files, options.rule, options.mode) == ((Path("b"), Path("c")), ("d", "e"), "slow")
    assert (options.dry_run, options.verbose) == (1000, True)


def test_help_comes_from_the_fields(parser: Parser) -> None:
    text = " ".join(parser.format_help().split())
    assert "--max-documents N at 100% at most" in text
    assert "--lengths N,N lengths (default 8,16)" in text
    assert "--mode {fast,slow} a mode (default fast)" in text
    assert "[--steps STEPS | --lengths N,N]" in text
    assert "typed" not in text


def test_an_option_without_a_description_is_refused() -> None:
    with pytest.raises(TypeError, match="Own does not describe `seed`: add a line"):

        class Own(CommandOptions):
            """Options.

            Attributes:
                sed: a typo
            """

            seed: int = 0
