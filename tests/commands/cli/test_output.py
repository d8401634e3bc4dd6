"""Printed paragraphs and lists of lines."""

import pytest

from megatape.commands.cli.output import print_paragraphs
from megatape.utils.text.paragraphs import Line


def test_lines_of_a_list_have_no_empty_lines_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_paragraphs(["head", Line("a"), Line("b"), "a table", "s3://name:secret@host"])
    assert capsys.readouterr().out == "head\n\na\nb\n\na table\n\ns3://name:***@host\n\n"
