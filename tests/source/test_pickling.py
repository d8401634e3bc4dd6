"""No collective in the package unpickles data from other processes."""

import ast
import re

from tests.helpers.checks.pages import ROOT

# Collectives of objects in torch and DeepSpeed
PICKLING = re.compile(r"(all_gather|gather|scatter|broadcast|send|recv)_object(_list|s)?")


def test_no_collective_pickles() -> None:
    pickling = []
    paths = list((ROOT / "megatape").rglob("*.py"))
    assert paths
    for path in paths:
        text = path.read_text()
        if PICKLING.search(text) is None:
            # Parsing all files takes seconds.
            continue
        for node in ast.walk(ast.parse(text)):
            name = getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))
            if isinstance(name, str) and PICKLING.fullmatch(name):
                pickling.append(f"{path.relative_to(ROOT)}: {name}")
    assert pickling == []
