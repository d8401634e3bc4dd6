"""Modules in the package, their imports, and the order of its layers."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "megatape"

# Folders and single modules of the package, lowest first. A layer imports only from layers above it in this list.
LAYERS = (
    "moved_modules",
    "search_path",
    "errors",
    "imports",
    "entries",
    "encoding_traits",
    "registry",
    "utils",
    "software",
    "run_folder",
    "config",
    "distributed",
    "reliability",
    "run_environment",
    "nn",
    "attention",
    "data",
    "encodings",
    "model",
    "optim",
    "zero",
    "accounting",
    "checkpoint",
    "hf",
    "api",
    "training",
    "tools",
    "lab",
    "commands",
    "__main__",
    "child",
)

# Parts of megatape/data, folders and single modules, lowest first. A part imports only from parts above it in this list.
PARTS_OF_DATA = (
    "printable",
    "counts",
    "document_entries",
    "io",
    "sources",
    "tokenizers",
    "shards",
    "cleaning",
    "prepare",
    "derived",
    "formats",
    "training",
    "finetuning",
    "synthetic",
)

# Library or module -> the only layers allowed to import it
LAYERS_THAT_IMPORT = {
    "deepspeed": {"zero"},
    "torchao": {"nn"},
    "torch.distributed": {
        "utils",
        "distributed",
        "reliability",
        "zero",
        "checkpoint",
        "training",
        "tools",
    },
    "torch.utils.checkpoint": {"nn"},
    "megatape.distributed.collectives": {"distributed", "nn"},
}


def _modules() -> dict[str, Path]:
    """Return every module in the package by its dotted name."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        names[".".join(parts)] = path
    return names


MODULES = _modules()


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Return what a module imports, at its top and inside functions.

    `from a import b` counts as the submodule a.b if there is one, and as a otherwise.
    """
    return tuple(_imports_of(module))


def _imports_of(module: str) -> Iterator[str]:
    path = MODULES[module]
    package = module.split(".")
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = []
            if node.level:
                parts += package[: len(package) - node.level + 1]
            if node.module:
                parts.append(node.module)
            source = ".".join(parts)
            for alias in node.names:
                name = f"{source}.{alias.name}"
                is_module = name in MODULES or name in LAYERS_THAT_IMPORT
                yield name if is_module else source


def layer_of(module: str) -> str:
    """Return a module's layer: its folder, or the file itself; "" for the package."""
    _, _, inside = module.partition(".")
    return inside.partition(".")[0]


def part_of_data(module: str) -> str:
    """Return the part of megatape/data containing a module: a folder, or the file itself."""
    return module.split(".")[2]


def description_of(layer: str) -> str:
    """Return the first line in a layer's docstring, without its full stop."""
    name = f"megatape.{layer}"
    docstring = ast.get_docstring(ast.parse(MODULES[name].read_text())) or ""
    first_line = docstring.partition("\n")[0]
    return first_line.removesuffix(".")
