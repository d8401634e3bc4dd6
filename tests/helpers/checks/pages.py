"""Pages of the documentation, and the commands and code that they show."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Placeholders in commands -> something that parses
PLACEHOLDERS = {"FILE": "configs/tape_tiny.json", "my_model.json": "configs/tape_155m.json", "K": "3"}
# Files that a page tells its reader to write
NEW_FILES = {path for page in PAGES for path in re.findall(r"\bWrite\s+`([\w./]+)`", page.read_text())}


@dataclass(frozen=True)
class Command:
    """A command line on a page.

    Attributes:
        page: The page showing it.
        words: Its words.
        complete: Whether it is a line of a code block. Code inside a sentence may be part of a command.
    """

    page: Path
    words: tuple[str, ...]
    complete: bool

    def __str__(self) -> str:
        return f"{self.page.name}: {shlex.join(self.words)}"


def code_in(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield lines of code blocks, joining continued ones (True), and code inside sentences (False)."""
    text = page.read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if not language:
            joined = re.sub(r"\\\n\s*", "", block)
            yield from ((line, True) for line in joined.splitlines())
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", prose):
        yield re.sub(r"\s+", " ", code), False


def words_in(line: str) -> tuple[str, ...]:
    """Split a line as a shell does, replacing placeholders. Returns nothing if the line is no command."""
    try:
        words = shlex.split(line.replace("$encoding", "rope"), comments=True)
    except ValueError:
        return ()
    # Brackets mark optional words, unless they enclose a list.
    bare = [word if "=[" in word else word.strip("[]") for word in words]
    return tuple(PLACEHOLDERS.get(word, word) for word in bare)


def _commands() -> Iterator[Command]:
    for page in PAGES:
        for line, complete in code_in(page):
            words = words_in(line)
            if words:
                yield Command(page, words, complete)


COMMANDS = list(dict.fromkeys(_commands()))
