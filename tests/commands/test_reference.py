"""The page of commands."""

from megatape.commands.reference import reference
from tests.helpers.workers import ROOT


def test_page_of_commands_is_up_to_date() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    assert page == reference(), "run: python -m megatape.commands.reference > docs/commands.md"
