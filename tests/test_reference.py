"""The pages that are made from the code."""

import runpy

import pytest

from tests.helpers.workers import ROOT


@pytest.mark.parametrize("page", ["commands", "config"])
def test_page_is_up_to_date(page: str) -> None:
    write = runpy.run_path(str(ROOT / "docs/reference.py"))[page]
    assert (ROOT / f"docs/{page}.md").read_text() == write(), f"run: python docs/reference.py {page} > docs/{page}.md"
