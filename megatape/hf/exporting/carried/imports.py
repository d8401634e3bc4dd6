"""Imports of a module, as exported folders have them: files that are carried, stand-ins, or nothing."""

import ast
from importlib.util import resolve_name
from typing import NamedTuple

from megatape.hf.exporting.carried.statements import Import, imports_in
from megatape.hf.modeling import stand_ins
from megatape.moved_modules import current_name

# Prefixes of the modules that exports carry, in addition to those that encodings import relatively.
CARRIED = ("megatape.attention.bias", "megatape.attention.rotation", "megatape.hf.modeling.", "megatape.encodings.")
# Prefix of the Triton kernels of encodings, for which stand_ins.py has stand-ins.
KERNELS = "megatape.encodings.kernels."
REGISTRY = "megatape.registry"


class Missing(NamedTuple):
    """Import that is not available in exported models.

    Attributes:
        line: Line number of the import.
        name: Imported module or name.
        training: Whether only training needs it. Statements with it are then dropped silently.
    """

    line: int
    name: str
    training: bool


class ModuleImports:
    """Imports of a module, as exported folders have them."""

    def __init__(self, module: str) -> None:
        self._package = module.rpartition(".")[0]

    def available(self, node: Import) -> list[ast.alias]:
        """Return the imported names of a statement that exported models have."""
        return [alias for alias in node.names if self.missing(node, alias) is None]

    def missing_in(self, statement: ast.stmt) -> list[Missing]:
        """Return the imports in a statement, itself included, that exported models lack."""
        found = []
        for node in imports_in(statement):
            for alias in node.names:
                missing = self.missing(node, alias)
                if missing is not None:
                    found.append(missing)
        return found

    def missing(self, node: Import, alias: ast.alias) -> Missing | None:
        """Return the import of one name if exported models lack it, or else None."""
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
        outside = not node.level and f"{module}.".startswith("megatape.") and not is_carried(module)
        if outside and not hasattr(stand_ins, alias.name):
            return Missing(node.lineno, name, training=False)
        return None

    def carried_module(self, node: Import) -> str | None:
        """Return the module that an export carries for an import statement, None if it carries none."""
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
    """Whether exports carry the file of a module of this package."""
    return module.startswith(CARRIED) and not module.startswith(KERNELS)
