"""mkdocs hook that includes README.md in index.md, and CONTRIBUTING.md in contributing.md, after their front matter.

Links and pictures, relative to the repository's root in these files, become relative to docs/.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Page of the site -> file in the root.
INCLUDED = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}
LINK = re.compile(r"\[([^]]+)\]\(([^)\s]+)\)")
PICTURE = re.compile(r'(src|srcset)="docs/')


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return a page's text with the file that it includes. mkdocs calls this for each page.

    Args:
        markdown: Text in the page's own file.
        page: mkdocs' page.
        config: mkdocs' configuration.
        files: Files of the site.
    """
    name = INCLUDED.get(page.file.src_uri)
    if name is None:
        return markdown
    text = (ROOT / name).read_text()
    text = LINK.sub(site_link, text)
    text = PICTURE.sub(r'\1="', text)
    return f"{markdown}\n{text}"


def site_link(match: re.Match[str]) -> str:
    """Make a link from the root relative to docs/. Only its text remains if the site has no such page."""
    text, target = match.groups()
    if target.startswith(("https://", "http://", "#")):
        return match[0]
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')})"
    for page, file in INCLUDED.items():
        if target == file:
            return f"[{text}]({page})"
    return text
