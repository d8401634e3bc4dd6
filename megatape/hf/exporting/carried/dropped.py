"""Finds the statements of a module that exports drop."""

import ast
from collections.abc import Sequence

from megatape.hf.exporting.carried.imports import Missing, ModuleImports
from megatape.hf.exporting.carried.statements import Import, bound_name, defined_names, is_program, used_names


class DroppedStatements:
    """Statements that need a missing import, and imports that only they use.

    Args:
        body: Statements of the module.
        imports: Imports of the module.

    Attributes:
        missing_imports: Dropped statement -> missing import that it needs, or None for an import statement.
        missing_names: Name that exported models lack -> missing import that causes this.
    """

    def __init__(self, body: Sequence[ast.stmt], imports: ModuleImports) -> None:
        self.missing_imports: dict[ast.stmt, Missing | None] = {}
        self.missing_names: dict[str, Missing] = {}
        self._body = body
        self._imports = imports
        self._find_missing_names()
        self._drop_dependent()
        self._drop_unused_imports()

    def __contains__(self, statement: ast.stmt) -> bool:
        """Whether a statement is dropped."""
        return statement in self.missing_imports

    def _find_missing_names(self) -> None:
        """Find the names that missing imports would define, and drop `if __name__ == "__main__"` blocks."""
        for statement in self._body:
            if isinstance(statement, Import):
                for alias in statement.names:
                    missing = self._imports.missing(statement, alias)
                    if missing is not None:
                        self.missing_names[bound_name(statement, alias)] = missing
            elif is_program(statement):
                self.missing_imports[statement] = Missing(statement.lineno, "__main__", training=True)

    def _drop_dependent(self) -> None:
        """Drop the statements that need a missing import, directly or through another dropped statement."""
        has_dropped_any = True
        while has_dropped_any:
            has_dropped_any = False
            for statement in self._body:
                if isinstance(statement, Import) or statement in self:
                    continue
                missing = self._missing_of(statement)
                if missing is not None:
                    has_dropped_any = True
                    self.missing_imports[statement] = missing
                    for name in defined_names(statement):
                        self.missing_names.setdefault(name, missing)

    def _drop_unused_imports(self) -> None:
        """Drop import statements that are missing, or only used by dropped statements."""
        used: set[str] = set()
        used_by_dropped: set[str] = set()
        for statement in self._body:
            if statement in self:
                used_by_dropped |= used_names(statement)
            elif not isinstance(statement, Import):
                used |= used_names(statement)
        unused = used_by_dropped - used
        for statement in self._body:
            if isinstance(statement, Import) and self._is_unneeded(statement, unused):
                self.missing_imports[statement] = None

    def _is_unneeded(self, node: Import, unused: set[str]) -> bool:
        """Whether all imports of a statement are missing or unused."""
        return all(bound_name(node, alias) in unused for alias in self._imports.available(node))

    def _missing_of(self, statement: ast.stmt) -> Missing | None:
        """Return a missing import that a statement needs, or None. Imports that only training needs are preferred."""
        names = sorted(used_names(statement) & self.missing_names.keys())
        needed = [self.missing_names[name] for name in names]
        needed += self._imports.missing_in(statement)
        return min(needed, key=lambda missing: not missing.training, default=None)
