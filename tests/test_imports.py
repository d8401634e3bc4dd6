"""Layers of the package import only what lies below them, and some libraries have one home."""

from graphlib import TopologicalSorter

import pytest

from tests.helpers.checks.import_graph import (
    LAYERS,
    LAYERS_THAT_IMPORT,
    MODULES,
    PACKAGE,
    PARTS_OF_DATA,
    imports_of,
    layer_of,
    part_of_data,
)
from tests.helpers.processes.without_torch import assert_not_imported

WITHOUT_TORCH = (
    "megatape.registry",
    "megatape.utils.text.units",
    "megatape.nn.targets",
    "megatape.run_folder",
    "megatape.utils.files.files",
    "megatape.config",
    "megatape.config.sections.distribution_limits",
    "megatape.config.sections.encoding_limits",
    "megatape.config.sections.layer_limits",
    "megatape.attention.shifted_limits",
    "megatape.model.compile_limits",
    "megatape.model.length_limits",
    "megatape.model.lora_limits",
    "megatape.nn.fp8_limits",
    "megatape.reliability.watch.diagnosis",
    "megatape.commands.cli.main",
)

# Layer or part of one -> prefixes of modules that it must not import, although their layer lies below it.
FORBIDDEN = {
    "megatape.checkpoint": ("megatape.model", "megatape.hf"),
    "megatape.training": ("megatape.hf",),
    "megatape.tools": ("megatape.lab",),
    "megatape.lab.report": ("megatape.lab.study",),
}
# The only modules that know the tools and the lab: commands import them lazily, the registry names them without importing.
OUTSIDE_THE_CORE = ("megatape.tools", "megatape.lab", "megatape.commands", "megatape.__main__", "megatape.child")


# Packages whose folders import each other in one direction only.
WITHOUT_CYCLES_OF_FOLDERS = (
    "megatape.accounting",
    "megatape.checkpoint",
    "megatape.config",
    "megatape.data.cleaning",
    "megatape.data.prepare",
    "megatape.data.shards",
    "megatape.data.training",
    "megatape.lab.benchmark",
    "megatape.tools.planner",
    "megatape.zero",
)


def folder_in(module: str, package: str) -> str | None:
    """Return the folder of a module below a package. None if the module is elsewhere, or directly in the package."""
    if not module.startswith(f"{package}."):
        return None
    folder, _, name = module.removeprefix(f"{package}.").partition(".")
    if not name:
        return None
    return folder


def is_inside(module: str, package: str) -> bool:
    """Whether a module is `package` or inside it."""
    return f"{module}.".startswith(f"{package}.")


def test_every_layer_is_listed() -> None:
    present = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py")}
    assert sorted(LAYERS) == sorted(present - {"__init__", "__pycache__"}), "LAYERS in tests/helpers/checks/import_graph.py"


def test_no_upward_import() -> None:
    upward = []
    for module in MODULES.keys() - {"megatape"}:
        for imported in imports_of(module):
            ours = imported.startswith("megatape.")
            if ours and LAYERS.index(layer_of(imported)) > LAYERS.index(layer_of(module)):
                upward.append(f"{module} imports {imported}")
    assert not upward


def test_core_knows_neither_tools_nor_lab() -> None:
    found = []
    for module in MODULES:
        if any(is_inside(module, package) for package in OUTSIDE_THE_CORE):
            continue
        for imported in imports_of(module):
            if is_inside(imported, "megatape.tools") or is_inside(imported, "megatape.lab"):
                found.append(f"{module} imports {imported}")
    assert not found


def test_forbidden_imports() -> None:
    found = []
    for package, forbidden in FORBIDDEN.items():
        for module in MODULES:
            if is_inside(module, package):
                for imported in imports_of(module):
                    if any(is_inside(imported, other) for other in forbidden):
                        found.append(f"{module} imports {imported}")
    assert not found


def test_parts_of_data() -> None:
    modules = [module for module in MODULES if module.startswith("megatape.data.")]
    assert sorted(PARTS_OF_DATA) == sorted({part_of_data(module) for module in modules})
    upward = []
    for module in modules:
        for imported in imports_of(module):
            is_in_data = imported.startswith("megatape.data.")
            if is_in_data and PARTS_OF_DATA.index(part_of_data(imported)) > PARTS_OF_DATA.index(part_of_data(module)):
                upward.append(f"{module} imports {imported}")
    assert not upward


def test_no_cycle_between_modules() -> None:
    graph = {}
    for module in MODULES:
        graph[module] = [name for name in imports_of(module) if name in MODULES]
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("package", WITHOUT_CYCLES_OF_FOLDERS)
def test_no_cycle_between_folders(package: str) -> None:
    """The docstrings of these packages say which folder imports which, and name an order in which to read them."""
    folders: dict[str, set[str]] = {}
    for module in MODULES:
        folder = folder_in(module, package)
        if folder is None:
            continue
        imported_folders = {folder_in(imported, package) for imported in imports_of(module)}
        imports = folders.setdefault(folder, set())
        imports.update(imported for imported in imported_folders if imported not in (None, folder))
    assert len(folders) > 2
    TopologicalSorter(folders).prepare()


@pytest.mark.parametrize("library", LAYERS_THAT_IMPORT)
def test_library_has_one_home(library: str) -> None:
    layers = set()
    for module in MODULES:
        if any(is_inside(name, library) for name in imports_of(module)):
            layers.add(layer_of(module))
    assert layers
    assert layers <= LAYERS_THAT_IMPORT[library]


def test_configuration_and_help_need_no_torch() -> None:
    statements = [f"import {module}" for module in WITHOUT_TORCH]
    statements.append("megatape.commands.cli.command_line.command_line().parse_args(['plan', '--config', 'FILE'])")
    assert_not_imported("torch", statements)


@pytest.mark.slow
def test_training_does_not_import_transformers() -> None:
    """Importing it takes as long as all other imports of a rank. Only reading its models needs it."""
    assert_not_imported("transformers", ["import megatape.training.pretrain"])


@pytest.mark.parametrize(("folder", "other"), [("study", "benchmark"), ("benchmark", "study")])
def test_studies_and_benchmarks_do_not_import_each_other(folder: str, other: str) -> None:
    """Code that both need is in modules of lab/ itself."""
    modules = [module for module in MODULES if module.startswith(f"megatape.lab.{folder}.")]
    assert modules
    for module in modules:
        for imported in imports_of(module):
            assert not f"{imported}.".startswith(f"megatape.lab.{other}."), f"{module} imports {imported}"
