"""Hook of mkdocs: pages of the site whose text is a file in the repository's root.

index.md has README.md, and contributing.md has CONTRIBUTING.md, each after its own front matter. Links and pictures, which
are relative to the root there, are rewritten to be relative to docs/.
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
    """Return the text of a page, with the file that it includes. mkdocs calls this for each page.

    Args:
        markdown: Text of the page's own file.
        page: Page of mkdocs.
        config: Configuration of mkdocs.
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
    """Return a link of a file in the root as it has to be in docs/. Only its text is left if the site has no such page."""
    text, target = match.groups()
    if target.startswith(("https://", "http://", "#")):
        return match[0]
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')})"
    for page, file in INCLUDED.items():
        if target == file:
            return f"[{text}]({page})"
    return text
