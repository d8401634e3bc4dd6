"""The import graph of megatape/ is the one stated in docs/architecture.md, and some libraries stay in their rooms."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "megatape"
ROOMS_OF = {  # the only rooms that may import a library or a module
    "deepspeed": {"zero"},
    "torchao": {"parallel"},
    "torch.distributed": {"torch_internals", "runtime", "parallel", "zero", "checkpoint", "training", "cluster"},
    "torch.utils.checkpoint": {"parallel"},
    "megatape.parallel.collectives": {"parallel"},
}
WITHOUT_TORCH = (
    "megatape.registry",
    "megatape.units",
    "megatape.targets",
    "megatape.run_folder",
    "megatape.files",
    "megatape.config",
    "megatape.runtime.diagnosis",
    "megatape.commands.main",
)


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


def test_layout_names_every_room() -> None:
    rooms = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.name not in ("__init__.py", "__pycache__") and path.suffix in ("", ".py")
    }
    order = stated_order()
    assert sorted(order) == sorted(rooms), (
        "docs/architecture.md, section Layout: one line for each folder, at its place in the import order"
    )


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_upward_import(module: str) -> None:
    order = stated_order()
    for imported in imports_of(module):
        if imported.startswith("megatape.") and room_of(imported) != room_of(module):
            assert order.index(room_of(imported)) < order.index(room_of(module)), f"{module} imports {imported}"


def test_no_cycle_between_modules() -> None:
    TopologicalSorter({module: [name for name in imports_of(module) if name in MODULES] for module in MODULES}).prepare()


@pytest.mark.parametrize("library", ROOMS_OF)
def test_library_stays_in_its_rooms(library: str) -> None:
    rooms = {room_of(module) for module in MODULES for name in imports_of(module) if f"{name}.".startswith(f"{library}.")}
    assert rooms and rooms <= ROOMS_OF[library]


def test_configuration_and_help_need_no_torch() -> None:
    imports = "; ".join(f"import {module}" for module in WITHOUT_TORCH)
    parse = "megatape.commands.main.parser().parse_args(['plan', '--config', 'FILE'])"
    code = f"import sys; {imports}; {parse}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
def test_training_does_not_import_transformers() -> None:
    """It takes as long as all else that a rank imports; only weights in its own folders need it."""
    code = "import sys, megatape.training.pretrain; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
