"""Decides what becomes of a module's imports in exported folders: carried files, stand-ins, or nothing."""

import ast
from importlib.util import resolve_name
from typing import NamedTuple

from megatape.hf.exporting.carried.statements import Import, imports_in
from megatape.hf.modeling import stand_ins
from megatape.moved_modules import current_name

# Prefixes of modules that exports carry, in addition to encodings' relative imports.
CARRIED = (
    "megatape.attention.bias",
    "megatape.attention.rotation",
    "megatape.config.layers.layer_pattern",
    "megatape.hf.modeling.",
    "megatape.encodings.",
)
# Prefix of encodings' Triton kernels, which stand_ins.py replaces.
KERNELS = "megatape.encodings.kernels."
REGISTRY = "megatape.registry"


class Missing(NamedTuple):
    """Import that is not available in exported models.

    Attributes:
        line: Line number of the import.
        name: Imported module or name.
        training: Whether only training needs the import, so that statements using it are dropped silently.
    """

    line: int
    name: str
    training: bool


class ModuleImports:
    """Imports of a module, as they are in exported folders."""

    def __init__(self, module: str) -> None:
        self._package = module.rpartition(".")[0]

    def available(self, node: Import) -> list[ast.alias]:
        """Return the names in an import statement that are available in exported models."""
        return [alias for alias in node.names if self.missing(node, alias) is None]

    def missing_in(self, statement: ast.stmt) -> list[Missing]:
        """Return the missing imports in a statement, which may be an import statement itself."""
        missing_imports = []
        for node in imports_in(statement):
            for alias in node.names:
                missing = self.missing(node, alias)
                if missing is not None:
                    missing_imports.append(missing)
        return missing_imports

    def missing(self, node: Import, alias: ast.alias) -> Missing | None:
        """Return the import of one name if it is missing in exported models, or else None."""
        if isinstance(node, ast.Import):
            if f"{alias.name}.".startswith("megatape."):
                return Missing(node.lineno, alias.name, training=alias.name == REGISTRY)
            return None
        module = self._source(node)
        name = f"{module}.{alias.name}"
        if REGISTRY in (module, name):
            return Missing(node.lineno, name, training=True)
        if node.module is None:
            return Missing(node.lineno, name, training=False)
        needs_stand_in = not node.level and f"{module}.".startswith("megatape.") and not is_carried(module)
        if needs_stand_in and not hasattr(stand_ins, alias.name):
            return Missing(node.lineno, name, training=False)
        return None

    def carried_module(self, node: Import) -> str | None:
        """Return the module that an export carries for an import statement, or None."""
        if isinstance(node, ast.Import) or node.module is None:
            return None
        module = self._source(node)
        if module == REGISTRY:
            return None
        if node.level or is_carried(module):
            return module
        if f"{module}.".startswith("megatape."):
            return stand_ins.__name__
        return None

    def _source(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that a statement imports from."""
        module = resolve_name("." * node.level + (node.module or ""), self._package)
        return current_name(module)


def is_carried(module: str) -> bool:
    """Whether exports carry a module's file from this package."""
    return module.startswith(CARRIED) and not module.startswith(KERNELS)
