"""Check the wording of the documentation, docstrings and comments: `python docs/prose.py` lists what to change.

Phrases that readers stumbled over do not come back, and comments and docstrings do not begin in the middle of a sentence. In
README, CHANGELOG and docs/, prose is also wrapped at WIDTH columns, and links have words as their text.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
CODE_FOLDERS = ("megatape", "launch", "data_prep", "examples", "docs", "tests")
# Phrases that readers stumbled over, and plain ones for them.
BANNED = {
    r"\bgo(es)? on\b": "resume, continue",
    r"\b(going|went|gone) on\b": "resume, continue",
    r"\ball the same\b": "still",
    r"\bfor the time being\b": "temporarily",
    r"\bof ours\b": "our, or MegaTAPE's",
    r"\bat hand\b": "available",
    r"\bin the making\b": "unfinished",
    r"\bstands? in\b(?! for)": "is recorded in, is in",
    r"\bby the clock\b(?! of)": "wall time",
    r"\bfor want of\b": "for lack of",
    r"\bmakes? room\b": "is evicted, frees space",
    r"\bof unknown origin\b": "untrusted",
    r"(^|[.;:|] )What (a|an|the|it|is|was|of|each|does|follows)\b": "name the thing",
}
# Beginnings of comments and docstrings that can be understood only with the line that they belong to.
DEPENDENT_BEGINNING = re.compile(r"(of|which|those|so that|as in|by which|that of)\b", re.IGNORECASE)
# Further beginnings of docstrings that make sense only after the name of the function.
DEPENDENT_DOCSTRING = re.compile(r"(otherwise|it|its|they|their)\b", re.IGNORECASE)
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


def dependent_beginnings(text: str, beginning: re.Pattern[str]) -> Iterator[str]:
    """Yield the beginning of a comment or docstring that does not stand alone."""
    if beginning.match(text):
        yield f"{text[:60]!r}: begin with a verb or a noun, so that the text stands alone"


def faults(page: Path) -> Iterator[str]:
    """Yield everything that is wrong with a page."""
    text = page.read_text()
    yield from long_lines(text)
    if page.name != "CHANGELOG.md":
        yield from link_texts(text)
        yield from phrases(text)


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a Python file."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def comments(source: str) -> Iterator[str]:
    """Yield the comments of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def faults_of_code(file: Path) -> Iterator[str]:
    """Yield everything that is wrong with the docstrings and comments of a Python file."""
    source = file.read_text()
    for docstring in docstrings(source):
        yield from dependent_beginnings(docstring, DEPENDENT_DOCSTRING)
    for text in [*docstrings(source), *comments(source)]:
        yield from phrases(text)
        yield from dependent_beginnings(text, DEPENDENT_BEGINNING)


def files() -> Iterator[tuple[Path, Iterator[str]]]:
    """Yield each page and Python file with what is wrong with it."""
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        yield page, faults(page)
    for folder in CODE_FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if "fixtures" not in file.parts:
                yield file, faults_of_code(file)


def main() -> int:
    """Print everything that is wrong. Return the exit status."""
    num_faults = 0
    for path, faults_of_path in files():
        for fault in faults_of_path:
            print(f"{path.relative_to(ROOT)}: {fault}")
            num_faults += 1
    return num_faults > 0


if __name__ == "__main__":
    sys.exit(main())
