"""The documentation's site: links between pages, navigation, and pages shown from outside docs/."""

import re
import runpy
from collections.abc import Iterator
from types import SimpleNamespace

import yaml

from tests.helpers.checks.pages import ROOT


def _pages(entries: object) -> Iterator[str]:
    """Yield all pages in a part of the site's navigation."""
    if isinstance(entries, str):
        yield entries
        return
    if isinstance(entries, dict):
        entries = list(entries.values())
    assert isinstance(entries, list)
    for entry in entries:
        yield from _pages(entry)


NAV = list(_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


def test_links_exist() -> None:
    """Checks README and its neighbors. Building the site checks links inside docs/."""
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{page.name}: {target}"


def test_documentation_lists_every_page() -> None:
    """For readers on GitHub, docs/README.md lists all pages in the site's navigation with their titles."""
    listed = dict(re.findall(r"^\* \[([^]]+)\]\(([^)]+)\)", (ROOT / "docs/README.md").read_text(), re.MULTILINE))
    # Pages that show a file of the root, and API pages, which the first API page links to.
    others = {"index.md", "contributing.md", "changelog.md"}
    others |= {page for page in NAV if page.startswith("api/") and page != "api/index.md"}
    assert sorted(listed.values()) == sorted(set(NAV) - others)
    for title, page in listed.items():
        assert (ROOT / "docs" / page).read_text().startswith(f"# {title}\n")


def test_site_shows_files_of_the_root() -> None:
    """The site's hook shows README.md as its first page, and redirects links to files of the root to their pages."""
    show = runpy.run_path(str(ROOT / "docs/include_pages.py"))["on_page_markdown"]

    def shown(page: str, text: str) -> str:
        return show(text, SimpleNamespace(file=SimpleNamespace(src_uri=page)), None, None)

    home = shown("index.md", "The site shows README here.")
    assert home.startswith("# MegaTAPE\n")
    assert "The site shows" not in home
    assert "](docs/" not in home
    assert "](README.md)" not in home
    assert shown("a.md", "[it](../README.md#maturity)") == "[it](index.md#maturity)"
    assert shown("api/b.md", "[it](../../CONTRIBUTING.md)") == "[it](../contributing.md)"
    assert shown("a.md", "[it](../CHANGELOG.md)") == "[it](changelog.md)"
    assert shown("changelog.md", "The site shows CHANGELOG here.").startswith("# Changelog\n")


def test_site_adds_dark_pictures() -> None:
    """The hook of the site adds the dark version of a picture that has one. A page naming both shows both on GitHub."""
    add_dark_pictures = runpy.run_path(str(ROOT / "docs/include_pages.py"))["add_dark_pictures"]

    shown = add_dark_pictures("![two\nlines](../figures/results.svg) ![one](../patterns.png)", "results/any.md")

    both = "![two\nlines](../figures/results.svg#only-light) ![two\nlines](../figures/results-dark.svg#only-dark)"
    assert shown == f"{both} ![one](../patterns.png)"
    for page in (ROOT / "docs").rglob("*.md"):
        assert "#only-" not in page.read_text(), f"{page.name} names a version of a picture"


def test_links_out_of_the_documentation_exist() -> None:
    """Checks links and anchors leading to README.md and its neighbors, which the site's hook changes."""
    for page in (ROOT / "docs").rglob("*.md"):
        for target, anchor in re.findall(r"\]\(((?:\.\./)+[\w.]+\.md)#?([\w-]*)\)", page.read_text()):
            file = (page.parent / target).resolve()
            if file.parent != ROOT:
                continue
            titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
            assert not anchor or anchor in anchors, f"{page.name}: {target}#{anchor}"


def test_navigation_has_every_page() -> None:
    """Full result tables are appendices, linked from other pages only."""
    appendices = {"shift", "efficiency", "addition", "addition_code", "ablations", "language", "finetune", "suite", "speed"}
    appendices |= {"planned", "faults", "definitions", "kernels", "engines", "optimizers", "layers", "tasks"}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    pages.remove("README.md")
    assert sorted(NAV) == sorted(pages - {f"results/{name}.md" for name in appendices})


def test_picture_of_results_has_its_tables() -> None:
    """docs/figures/draw.py finds its tables in docs/results/."""
    script = runpy.run_path(str(ROOT / "docs/figures/draw.py"))
    assert len(script["draw"]().axes) == 3
