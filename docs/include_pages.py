"""mkdocs hook that shows README.md, CONTRIBUTING.md and CHANGELOG.md in place of the text of their pages in docs/.

Links and pictures, relative to the repository's root in these files, become relative to docs/. Links of other pages to these
files become links to the pages that show them. A picture of another page that has a dark version, such as curves-dark.png
beside curves.png, is shown in the version that fits the reader's color scheme. Pages don't name the dark version, because
GitHub would show both.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Page of the site -> file in the root.
INCLUDED = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"\[([^]]+)\]\(([^)\s]+)\)")
LINK_TO_ROOT = re.compile(r"\]\(((?:\.\./)*)\.\./(README|CONTRIBUTING|CHANGELOG)\.md")
# Pages that only readers of the repository need, because the site has its navigation.
NOT_ON_SITE = ("docs/README.md",)
HTML_PICTURE = re.compile(r'(src|srcset)="docs/')
PICTURE = re.compile(r"!\[([^]]*)\]\(([^)\s#]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the text of a page, or of the file that it shows. mkdocs calls this for each page.

    Args:
        markdown: Text in the page's own file.
        page: mkdocs' page.
        config: mkdocs' configuration.
        files: Files of the site.
    """
    name = INCLUDED.get(page.file.src_uri)
    if name is None:
        return add_dark_pictures(LINK_TO_ROOT.sub(link_to_page, markdown), page.file.src_uri)
    text = (ROOT / name).read_text()
    text = LINK.sub(site_link, text)
    return HTML_PICTURE.sub(r'\1="', text)


def add_dark_pictures(markdown: str, page: str) -> str:
    """Add the dark version of each picture that has one. The site's theme then shows one of both.

    Args:
        markdown: Text of the page.
        page: Path of the page in docs/.
    """
    folder = ROOT / "docs" / PurePosixPath(page).parent

    def in_both_versions(match: re.Match[str]) -> str:
        description, light = match.groups()
        path = PurePosixPath(light)
        dark = path.with_name(f"{path.stem}-dark{path.suffix}")
        if not (folder / dark).is_file():
            return match[0]
        return f"![{description}]({light}#only-light) ![{description}]({dark}#only-dark)"

    return PICTURE.sub(in_both_versions, markdown)


def link_to_page(match: re.Match[str]) -> str:
    """Return the beginning of a link to a file of INCLUDED as a link to the page that shows it."""
    folders, name = match.groups()
    for page, file in INCLUDED.items():
        if file == f"{name}.md":
            return f"]({folders}{page}"
    return match[0]


def site_link(match: re.Match[str]) -> str:
    """Make a link from the root relative to docs/. Only its text remains if the site has no such page."""
    text, target = match.groups()
    if target.startswith(("https://", "http://", "#")):
        return match[0]
    if target in NOT_ON_SITE:
        return text
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')})"
    for page, file in INCLUDED.items():
        if target.partition("#")[0] == file:
            return f"[{text}]({target.replace(file, page)})"
    return text
