"""Python files of this package and of its users, rewritten so that exported folders can carry them.

Imports from megatape become imports of files in the same folder. Statements that only training needs, such as an optimizer
beside an encoding, are dropped.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

from megatape.errors import UserError
from megatape.hf.modeling import stand_ins
from megatape.moved_modules import current_name

# Prefixes of the modules that exports carry, in addition to those that encodings import relatively.
CARRIED = ("megatape.attention.bias", "megatape.attention.rotation", "megatape.hf.modeling.", "megatape.encodings.")
REGISTRY = "megatape.registry"

_Import = ast.Import | ast.ImportFrom
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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


class CarriedFile:
    """Module, rewritten for exported folders.

    Attributes:
        module: Name of the module.
        path: File of the module.
    """

    def __init__(self, module: str) -> None:
        self.module = module
        self.path = file_of(module)
        self._lines = self.path.read_bytes().splitlines(keepends=True)
        self._body = ast.parse(b"".join(self._lines), str(self.path)).body
        self._missing_names: dict[str, Missing] = {}
        self._dropped: dict[ast.stmt, Missing | None] = {}
        self._find_dropped()

    @cached_property
    def text(self) -> str:
        """Rewritten code, with imports from its own folder."""
        lines = list(self._lines)
        for statement in self._body:
            if statement not in self._dropped:
                for node in _imports(statement):
                    self._make_relative(node, lines)
        starts = [_first_line(statement) for statement in self._body]
        for index, statement in reversed(list(enumerate(self._body))):
            replacement = self._replacement(statement)
            if replacement is None:
                continue
            begin = starts[index]
            end = statement.end_lineno or begin
            neighbours = starts[index + 1 : index + 2] + [other.end_lineno for other in self._body[max(index - 1, 0) : index]]
            if begin in neighbours or end in neighbours:  # Another statement shares a line.
                raise UserError(f"{self.path}, line {begin}: write one statement a line, so that exports can drop this one")
            lines[begin - 1 : end] = replacement
        return b"".join(lines).decode("utf-8")

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Modules that an export must carry with this one -> imported names of each, `*` for all."""
        found: dict[str, set[str]] = {}
        for statement in self._body:
            if statement in self._dropped:
                continue
            for node in _imports(statement):
                module = self._carried_module(node)
                if module is not None:
                    names = {alias.name for alias in node.names if self._missing(node, alias) is None}
                    found.setdefault(module, set()).update(names)
        return found

    def check(self, names: Iterable[str]) -> None:
        """Check that definitions do not need imports that exported models lack.

        Args:
            names: Names that other files of the export import from this one, `*` for all.

        Raises:
            UserError: One of them needs an import that exported models do not have.
        """
        names = set(names)
        if "*" in names:
            names |= {name for statement in self._body for name in _defined(statement)}
        for name in sorted(names & self._missing_names.keys()):
            missing = self._missing_names[name]
            if not missing.training:
                self._refuse(missing, name)
        needed = self._needed(names)
        for statement, reason in self._dropped.items():
            if reason is None or reason.training or _only_defines(statement):
                continue
            # Another statement, such as a call, may change what a needed definition computes.
            for name in sorted(_used(statement) & needed):
                self._refuse(reason, name)

    def _refuse(self, missing: Missing, name: str) -> None:
        raise UserError(
            f"{self.path}, line {missing.line}: {missing.name} is not in exported models, which run without MegaTAPE, "
            f"and {name} needs it: write `from MODULE import`, with a module of megatape.encodings, "
            "megatape.attention.bias or .rotation, or a name that megatape/hf/modeling/stand_ins.py has"
        )

    def _find_dropped(self) -> None:
        """Find the statements that need a missing import, directly or through another such statement."""
        for statement in self._body:
            if isinstance(statement, _Import):
                for alias in statement.names:
                    missing = self._missing(statement, alias)
                    if missing is not None:
                        self._missing_names[_bound(statement, alias)] = missing
            elif _is_program(statement):
                self._dropped[statement] = Missing(statement.lineno, "__main__", training=True)
        found = True
        while found:
            found = False
            for statement in self._body:
                if isinstance(statement, _Import) or statement in self._dropped:
                    continue
                missing = self._missing_of(statement)
                if missing is not None:
                    found = True
                    self._dropped[statement] = missing
                    for name in _defined(statement):
                        self._missing_names.setdefault(name, missing)
        kept = [statement for statement in self._body if statement not in self._dropped and not isinstance(statement, _Import)]
        used = {name for statement in kept for name in _used(statement)}
        unused = {name for statement in self._dropped for name in _used(statement)} - used
        for statement in self._body:
            if isinstance(statement, _Import) and all(self._is_unneeded(statement, alias, unused) for alias in statement.names):
                self._dropped[statement] = None

    def _is_unneeded(self, node: _Import, alias: ast.alias, unused: set[str]) -> bool:
        return self._missing(node, alias) is not None or _bound(node, alias) in unused

    def _missing_of(self, statement: ast.stmt) -> Missing | None:
        """Return the missing import that a statement needs, preferably one that only training needs; None if it needs none."""
        found = [self._missing_names[name] for name in sorted(_used(statement) & self._missing_names.keys())]
        for node in _imports(statement):
            for alias in node.names:
                missing = self._missing(node, alias)
                if missing is not None:
                    found.append(missing)
        return min(found, key=lambda missing: not missing.training, default=None)

    def _missing(self, node: _Import, alias: ast.alias) -> Missing | None:
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
        outside = not node.level and f"{module}.".startswith("megatape.") and not module.startswith(CARRIED)
        if outside and not hasattr(stand_ins, alias.name):
            return Missing(node.lineno, name, training=False)
        return None

    def _source(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that a statement imports from."""
        module = resolve_name("." * node.level + (node.module or ""), self.module.rpartition(".")[0])
        return current_name(module)

    def _carried_module(self, node: _Import) -> str | None:
        """Return the module that an export carries for an import statement, None if it carries none."""
        if isinstance(node, ast.Import) or node.module is None:
            return None
        module = self._source(node)
        if module == REGISTRY:
            return None
        if node.level or module.startswith(CARRIED):
            return module
        if f"{module}.".startswith("megatape."):
            return stand_ins.__name__
        return None

    def _make_relative(self, node: _Import, lines: list[bytes]) -> None:
        """Rewrite an import statement in `lines`, so that it imports from the folder of the export."""
        module = self._carried_module(node)
        if module is None:
            return
        assert isinstance(node, ast.ImportFrom)
        written = f"from {'.' * node.level}{node.module} ".encode()
        relative = f"from .{module.rpartition('.')[2]} ".encode()
        lines[node.lineno - 1] = lines[node.lineno - 1].replace(written, relative)

    def _replacement(self, statement: ast.stmt) -> list[bytes] | None:
        """Return the lines that replace a statement: [] if it is dropped, None if it does not change."""
        if statement in self._dropped:
            return []
        if not isinstance(statement, _Import):
            return None
        kept = [alias for alias in statement.names if self._missing(statement, alias) is None]
        if len(kept) == len(statement.names):
            return None
        if isinstance(statement, ast.Import):
            return [ast.unparse(ast.Import(kept)).encode() + b"\n"]
        module = self._carried_module(statement)
        assert module is not None
        return [ast.unparse(ast.ImportFrom(module.rpartition(".")[2], kept, 1)).encode() + b"\n"]

    def _needed(self, names: Iterable[str]) -> set[str]:
        """Return these names and all names that their definitions use, directly or indirectly."""
        needed = set(names)
        new = set(needed)
        while new:
            used: set[str] = set()
            for statement in self._body:
                if statement not in self._dropped and new.intersection(_defined(statement)):
                    used |= _used(statement)
            new = used - needed
            needed |= new
        return needed


def file_of(module: str) -> Path:
    """Return the file of a module, importing it.

    Raises:
        UserError: The module has no file, such as that of an interactive session.
    """
    file = getattr(import_module(module), "__file__", None)
    if file is None:
        raise UserError(f"the module {module} has no file that an export could carry: write its code to a file")
    return Path(file)


def carry(wanted: dict[str, set[str]], written: dict[str, Path]) -> dict[str, str]:
    """Collect the files that an export must carry.

    Args:
        wanted: Names of modules -> names that the export uses from each.
        written: Names of files that the export writes itself -> files of this package that they replace.

    Returns:
        Names of files -> their code.

    Raises:
        UserError: Two files have the same name, or one needs what exported models do not have.
    """
    origin = next(iter(wanted))
    files: dict[str, CarriedFile] = {}
    paths = dict(written)
    queue = list(wanted.items())
    while queue:
        module, names = queue.pop()
        path = file_of(module)
        if paths.setdefault(path.name, path) != path:
            raise UserError(f"{file_of(origin)}: exports have another {path.name}: rename the file")
        if path.name in written:
            continue
        if path.name not in files:
            files[path.name] = CarriedFile(module)
            queue += files[path.name].imports.items()
        files[path.name].check(names)
    return {name: file.text for name, file in files.items()}


def _imports(statement: ast.stmt) -> Iterator[_Import]:
    """Yield the import statements in a statement, itself included."""
    for node in ast.walk(statement):
        if isinstance(node, _Import):
            yield node


def _bound(node: _Import, alias: ast.alias) -> str:
    """Return the name under which an import is known in the file."""
    if alias.asname:
        return alias.asname
    if isinstance(node, ast.Import):
        return alias.name.partition(".")[0]
    return alias.name


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines there."""
    if isinstance(statement, _Definition):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, _Import):
            names.update(_bound(node, alias) for alias in node.names)
        elif isinstance(node, _Definition):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _only_defines(statement: ast.stmt) -> bool:
    """Whether dropping a statement changes nothing but the names that it defines."""
    return isinstance(statement, _Definition | _Import | ast.Assign | ast.AnnAssign) and bool(_defined(statement))


def _used(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads, or changes in place."""
    if isinstance(statement, ast.AugAssign):
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _is_program(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == ...`, code that only runs in a program."""
    return isinstance(statement, ast.If) and "__name__" in _used(statement)


def _first_line(statement: ast.stmt) -> int:
    """Return the line number of a statement or of its first decorator."""
    decorators = statement.decorator_list if isinstance(statement, _Definition) else []
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
