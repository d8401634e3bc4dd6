"""Rewrites a module for exported folders."""

import ast
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from megatape.errors import UserError
from megatape.hf.exporting.carried.dropped import DroppedStatements
from megatape.hf.exporting.carried.imports import Missing, ModuleImports
from megatape.hf.exporting.carried.statements import Import, defined_names, first_line, imports_in, only_defines, used_names


class CarriedFile:
    """Module, rewritten for exported folders.

    Attributes:
        path: File of the original module.
    """

    def __init__(self, module: str) -> None:
        self.path = file_of(module)
        self._lines = self.path.read_bytes().splitlines(keepends=True)
        self._body = ast.parse(b"".join(self._lines), str(self.path)).body
        self._module_imports = ModuleImports(module)
        self._dropped = DroppedStatements(self._body, self._module_imports)

    @cached_property
    def text(self) -> str:
        """Rewritten code, which imports from the folder of the export."""
        lines = list(self._lines)
        for statement in self._body:
            if statement not in self._dropped:
                for node in imports_in(statement):
                    self._make_relative(node, lines)
        # Start with the last statement, so that the line numbers of earlier statements stay valid.
        for index, statement in reversed(list(enumerate(self._body))):
            replacement = self._replacement(statement)
            if replacement is None:
                continue
            begin = first_line(statement)
            end = statement.end_lineno or begin
            if self._shares_line(index, begin, end):
                raise UserError(f"{self.path}, line {begin}: write one statement a line, so that exports can drop this one")
            lines[begin - 1 : end] = replacement
        return b"".join(lines).decode("utf-8")

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Modules that an export must carry with this one -> names imported from them, `*` for all."""
        names_by_module: dict[str, set[str]] = {}
        for statement in self._body:
            if statement in self._dropped:
                continue
            for node in imports_in(statement):
                module = self._module_imports.carried_module(node)
                if module is not None:
                    names = {alias.name for alias in self._module_imports.available(node)}
                    names_by_module.setdefault(module, set()).update(names)
        return names_by_module

    def check(self, names: Iterable[str]) -> None:
        """Check that definitions do not need imports that are missing in exported models.

        Args:
            names: Names that other files of the export import from this one, `*` for all.

        Raises:
            UserError: A definition needs a missing import.
        """
        names = set(names)
        if "*" in names:
            for statement in self._body:
                names |= defined_names(statement)
        for name in sorted(names & self._dropped.missing_names.keys()):
            missing = self._dropped.missing_names[name]
            if not missing.training:
                self._raise_missing(missing, name)
        needed = self._needed(names)
        for statement, missing_import in self._dropped.missing_imports.items():
            if missing_import is None or missing_import.training or only_defines(statement):
                continue
            # Other statements, such as calls, may change what a needed definition computes, so they must not be dropped.
            for name in sorted(used_names(statement) & needed):
                self._raise_missing(missing_import, name)

    def _raise_missing(self, missing: Missing, name: str) -> NoReturn:
        """Raise UserError about a definition that needs a missing import."""
        raise UserError(
            f"{self.path}, line {missing.line}: {missing.name} is not in exported models, which run without MegaTAPE, "
            f"and {name} needs it: write `from MODULE import`, with a module of megatape.encodings, "
            "megatape.attention.bias or .rotation, or a name that megatape/hf/modeling/stand_ins.py has"
        )

    def _needed(self, names: Iterable[str]) -> set[str]:
        """Return names and all names that their definitions use, directly or indirectly."""
        needed = set(names)
        new = set(needed)
        while new:
            used: set[str] = set()
            for statement in self._body:
                if statement not in self._dropped and new.intersection(defined_names(statement)):
                    used |= used_names(statement)
            new = used - needed
            needed |= new
        return needed

    def _shares_line(self, index: int, begin: int, end: int) -> bool:
        """Whether a statement shares its first or last line with another one. index: Index of the statement in the file."""
        neighbors = []
        if index > 0:
            neighbors.append(self._body[index - 1].end_lineno)
        if index + 1 < len(self._body):
            neighbors.append(first_line(self._body[index + 1]))
        return begin in neighbors or end in neighbors

    def _make_relative(self, node: Import, lines: list[bytes]) -> None:
        """Rewrite an import statement in `lines` to import from the folder of the export."""
        module = self._module_imports.carried_module(node)
        if module is None:
            return
        assert isinstance(node, ast.ImportFrom)
        written = f"from {'.' * node.level}{node.module} ".encode()
        relative = f"from .{module.rpartition('.')[2]} ".encode()
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(written, relative)

    def _replacement(self, statement: ast.stmt) -> list[bytes] | None:
        """Return the lines that replace a statement: [] drops it, None leaves it unchanged."""
        if statement in self._dropped:
            return []
        if not isinstance(statement, Import):
            return None
        available = self._module_imports.available(statement)
        if len(available) == len(statement.names):
            return None
        if isinstance(statement, ast.Import):
            return [ast.unparse(ast.Import(available)).encode() + b"\n"]
        module = self._module_imports.carried_module(statement)
        assert module is not None
        return [ast.unparse(ast.ImportFrom(module.rpartition(".")[2], available, 1)).encode() + b"\n"]


def file_of(module: str) -> Path:
    """Return the file of a module, importing it.

    Raises:
        UserError: The module has no file, because it belongs to an interactive session, for example.
    """
    file = getattr(import_module(module), "__file__", None)
    if file is None:
        raise UserError(f"the module {module} has no file that an export could carry: write its code to a file")
    return Path(file)
