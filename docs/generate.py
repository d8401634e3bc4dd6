"""Writes the parts of the documentation that are generated from the code.

    python docs/generate.py            writes them
    python docs/generate.py --check    only lists the files that would change, and fails if there are any

These are the pages about commands and configuration, and the list of layers in docs/architecture.md.
"""

import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs import reference
from tests.helpers.checks.import_graph import LAYERS, PARTS_OF_DATA, description_of


def layer_list() -> str:
    """Return one line per layer, for the layout in docs/architecture.md."""
    names = {}
    for layer in LAYERS:
        names[layer] = f"{layer}.py"
        if (ROOT / "megatape" / layer).is_dir():
            names[layer] = f"{layer}/"
    width = max(map(len, names.values())) + 1
    lines = [f"  {name:{width}}{description_of(layer)}\n" for layer, name in names.items()]
    return "".join(lines)


def architecture(page: str) -> str:
    """Return docs/architecture.md with up-to-date layers."""
    page = re.sub(r"(?<=^megatape/\n)(?:  .*\n)+", lambda _: layer_list(), page, count=1, flags=re.MULTILINE)
    parts = ", ".join(f"`{part}`" for part in PARTS_OF_DATA)
    paragraph = textwrap.fill(f"Parts of `data/`, in their import order: {parts}.", 100, break_on_hyphens=False)
    return re.sub(
        r"^Parts of `data/`, in their import order:.*?(?=\n\n)", lambda _: paragraph, page, flags=re.MULTILINE | re.DOTALL
    )


# Page -> function from its present text to the new one.
PAGES: dict[str, Callable[[str], str]] = {
    "docs/architecture.md": architecture,
    "docs/commands.md": lambda _: reference.commands(),
    "docs/config.md": lambda _: reference.config(),
}


def outdated() -> dict[Path, str]:
    """Return the pages that do not match the code, each with its new text."""
    pages = {}
    for name, render in PAGES.items():
        path = ROOT / name
        present = path.read_text()
        new = render(present)
        if new != present:
            pages[path] = new
    return pages


def main(arguments: list[str]) -> int:
    """Write the outdated pages, or list them with --check. Return the exit status."""
    pages = outdated()
    if arguments == ["--check"]:
        for path in pages:
            print(f"{path.relative_to(ROOT)} is out of date: run python docs/generate.py")
        return len(pages) > 0
    for path, text in pages.items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
