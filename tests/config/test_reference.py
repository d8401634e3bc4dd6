"""The page of the configuration."""

from megatape.config.reference import reference
from tests.helpers.workers import ROOT


def test_reference_page_is_up_to_date() -> None:
    page = (ROOT / "docs/config.md").read_text()
    assert page == reference(), "run: python -m megatape.config.reference > docs/config.md"
