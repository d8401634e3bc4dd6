"""Python files of this package and of its users, rewritten so that exported folders can carry them.

Imports from megatape become imports of files in the same folder. Statements that only training needs, such as an optimizer
beside an encoding, are dropped.
"""

import ast
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple, NoReturn

from megatape.errors import UserError
from megatape.hf.exporting.statements import (
    Import,
    bound_name,
    defined_names,
    first_line,
    imports_in,
    is_program,
    only_defines,
    used_names,
)
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
                for node in imports_in(statement):
                    self._make_relative(node, lines)
        # From the last statement to the first, so that the line numbers of the others stay valid.
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

    def _shares_line(self, index: int, begin: int, end: int) -> bool:
        """Whether the statement with this index shares its first or last line with another statement."""
        neighbours = []
        if index > 0:
            neighbours.append(self._body[index - 1].end_lineno)
        if index + 1 < len(self._body):
            neighbours.append(first_line(self._body[index + 1]))
        return begin in neighbours or end in neighbours

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Modules that an export must carry with this one -> imported names of each, `*` for all."""
        found: dict[str, set[str]] = {}
        for statement in self._body:
            if statement in self._dropped:
                continue
            for node in imports_in(statement):
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
            for statement in self._body:
                names |= defined_names(statement)
        for name in sorted(names & self._missing_names.keys()):
            missing = self._missing_names[name]
            if not missing.training:
                self._refuse(missing, name)
        needed = self._needed(names)
        for statement, reason in self._dropped.items():
            if reason is None or reason.training or only_defines(statement):
                continue
            # Another statement, such as a call, may change what a needed definition computes.
            for name in sorted(used_names(statement) & needed):
                self._refuse(reason, name)

    def _refuse(self, missing: Missing, name: str) -> NoReturn:
        """Raise UserError about a definition that needs a missing import."""
        raise UserError(
            f"{self.path}, line {missing.line}: {missing.name} is not in exported models, which run without MegaTAPE, "
            f"and {name} needs it: write `from MODULE import`, with a module of megatape.encodings, "
            "megatape.attention.bias or .rotation, or a name that megatape/hf/modeling/stand_ins.py has"
        )

    def _find_dropped(self) -> None:
        """Find the statements to drop: those that need a missing import, and imports that only they use."""
        self._find_missing_names()
        self._drop_dependent()
        self._drop_unused_imports()

    def _find_missing_names(self) -> None:
        """Find the names that missing imports bind, and drop the code that only runs in a program."""
        for statement in self._body:
            if isinstance(statement, Import):
                for alias in statement.names:
                    missing = self._missing(statement, alias)
                    if missing is not None:
                        self._missing_names[bound_name(statement, alias)] = missing
            elif is_program(statement):
                self._dropped[statement] = Missing(statement.lineno, "__main__", training=True)

    def _drop_dependent(self) -> None:
        """Drop the statements that need a missing import, directly or through another dropped statement."""
        found = True
        while found:
            found = False
            for statement in self._body:
                if isinstance(statement, Import) or statement in self._dropped:
                    continue
                missing = self._missing_of(statement)
                if missing is not None:
                    found = True
                    self._dropped[statement] = missing
                    for name in defined_names(statement):
                        self._missing_names.setdefault(name, missing)

    def _drop_unused_imports(self) -> None:
        """Drop the import statements that are missing, or that only dropped statements use."""
        used: set[str] = set()
        used_by_dropped: set[str] = set()
        for statement in self._body:
            if statement in self._dropped:
                used_by_dropped |= used_names(statement)
            elif not isinstance(statement, Import):
                used |= used_names(statement)
        unused = used_by_dropped - used
        for statement in self._body:
            if isinstance(statement, Import) and self._is_unneeded(statement, unused):
                self._dropped[statement] = None

    def _is_unneeded(self, node: Import, unused: set[str]) -> bool:
        """Whether all imports of a statement are missing or unused."""
        for alias in node.names:
            if self._missing(node, alias) is None and bound_name(node, alias) not in unused:
                return False
        return True

    def _missing_of(self, statement: ast.stmt) -> Missing | None:
        """Return the missing import that a statement needs, preferably one that only training needs; None if it needs none."""
        found = [self._missing_names[name] for name in sorted(used_names(statement) & self._missing_names.keys())]
        for node in imports_in(statement):
            for alias in node.names:
                missing = self._missing(node, alias)
                if missing is not None:
                    found.append(missing)
        return min(found, key=lambda missing: not missing.training, default=None)

    def _missing(self, node: Import, alias: ast.alias) -> Missing | None:
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

    def _source(self, node: ast.ImportFrom) -> str:
        """Return the absolute name of the module that a statement imports from."""
        module = resolve_name("." * node.level + (node.module or ""), self.module.rpartition(".")[0])
        return current_name(module)

    def _carried_module(self, node: Import) -> str | None:
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

    def _make_relative(self, node: Import, lines: list[bytes]) -> None:
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
        if not isinstance(statement, Import):
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
                if statement not in self._dropped and new.intersection(defined_names(statement)):
                    used |= used_names(statement)
            new = used - needed
            needed |= new
        return needed


def is_carried(module: str) -> bool:
    """Whether exports carry the file of a module of this package."""
    return module.startswith(CARRIED) and not module.startswith(KERNELS)


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
