"""The import graph of megatape/ is the one stated in docs/architecture.md, and some libraries stay in their rooms."""

import subprocess
import sys
from graphlib import TopologicalSorter

import pytest

from tests.helpers.import_graph import MODULES, PACKAGE, ROOMS_OF, ROOT, imports_of, room_of, stated_order

WITHOUT_TORCH = (
    "megatape.registry",
    "megatape.utils.units",
    "megatape.utils.targets",
    "megatape.run_folder",
    "megatape.utils.files",
    "megatape.config",
    "megatape.reliability.diagnosis",
    "megatape.commands.main",
)


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
