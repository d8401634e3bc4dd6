"""Modules of the package, what they import, and the order of folders that the documentation states."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "megatape"
ROOMS_OF = {  # the only rooms that may import a library or a module
    "deepspeed": {"zero"},
    "torchao": {"nn"},
    "torch.distributed": {"utils", "distributed", "reliability", "nn", "zero", "accounting", "checkpoint", "training", "tools"},
    "torch.utils.checkpoint": {"nn"},
    "megatape.distributed.collectives": {"distributed", "nn"},
}


def _modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = _modules()


def imports_of(module: str) -> Iterator[str]:
    """Imports of `module`, at its top and inside functions; for `from a import b` the submodule a.b if it exists."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{source}.{alias.name}"
                yield name if name in MODULES or name in ROOMS_OF else source


def room_of(module: str) -> str:
    """The folder that holds `module`, or the file beside the folders."""
    return module.split(".")[1] if "." in module else ""


def stated_order() -> list[str]:
    """Rooms in the order of the layout in docs/architecture.md, lowest first."""
    layout = (ROOT / "docs/architecture.md").read_text().split("\nmegatape/\n")[1].split("\n```")[0]
    return re.findall(r"^  (\w+)(?:/|\.py) ", layout, re.MULTILINE)
