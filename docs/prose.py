"""Check the wording and the layout of README, CHANGELOG and docs/: `python docs/prose.py` lists what to change.

Prose is wrapped at WIDTH columns, links have words as their text, and phrases that readers stumbled over do not come back.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
# Phrases that readers stumbled over, and plain ones for them.
BANNED = {
    r"\bgo(es)? on\b": "resume, continue",
    r"\b(going|went|gone) on\b": "resume, continue",
    r"\bin front of\b": "before",
    r"\ball the same\b": "still",
    r"\bfor the time being\b": "temporarily",
    r"\bso many\b": "a number of, n",
    r"\bof ours\b": "our, or MegaTAPE's",
    r"\bat hand\b": "available",
    r"\bin the making\b": "unfinished",
    r"\bstands? in\b": "is recorded in, is in",
    r"\bby the clock\b": "wall time",
    r"\bfor want of\b": "for lack of",
    r"\bmakes? room\b": "is evicted, frees space",
    r"\bof unknown origin\b": "untrusted",
    r"(^|[.;:|] )What (a|an|the|it|is|was|of|each|does|follows)\b": "name the thing",
}
FILE_NAME = re.compile(r"`?[\w./-]+\.(md|py|json|yml)`?")
NOT_WRAPPED = ("|", "    ", "![", "#", "  <source")  # beginnings of lines of tables, code, pictures and headings


def without_code_blocks(text: str) -> str:
    """Return a page without fenced code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def long_lines(text: str) -> Iterator[str]:
    """Yield lines of prose that are too long and can be broken."""
    for line in without_code_blocks(text).splitlines():
        if len(line) > WIDTH and " " in line.strip() and not line.startswith(NOT_WRAPPED):
            yield f"longer than {WIDTH} columns: {line[:60]}..."


def link_texts(text: str) -> Iterator[str]:
    """Yield links whose text is a file name."""
    for link in re.findall(r"\[([^]]+)\]\([^)]+\)", text):
        if FILE_NAME.fullmatch(link):
            yield f"a link needs words as its text: {link}"


def phrases(text: str) -> Iterator[str]:
    """Yield banned phrases, and what to write instead."""
    text = re.sub(r"`[^`]*`", "``", without_code_blocks(text))  # code and quoted messages
    text = re.sub(r"(?<=\S)\n *(?=[^\s*|#])", " ", text)  # a phrase may lie across lines
    for phrase, better in BANNED.items():
        match = re.search(phrase, text, re.MULTILINE | re.IGNORECASE)
        if match:
            context = text[max(0, match.start() - 40) : match.end() + 20]
            yield f"{context!r}: write {better!r}"


def faults(page: Path) -> Iterator[str]:
    """Yield everything that is wrong with a page."""
    text = page.read_text()
    yield from long_lines(text)
    if page.name != "CHANGELOG.md":
        yield from link_texts(text)
        yield from phrases(text)


def main() -> int:
    """Print everything that is wrong. Return the exit status."""
    num_faults = 0
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        for fault in faults(page):
            print(f"{page.relative_to(ROOT)}: {fault}")
            num_faults += 1
    return num_faults > 0


if __name__ == "__main__":
    sys.exit(main())
