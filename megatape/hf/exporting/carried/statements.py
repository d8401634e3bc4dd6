"""Analysis of the statements of a Python file: imports, and names that they define or use."""

import ast
from collections.abc import Iterator

Import = ast.Import | ast.ImportFrom
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def imports_in(statement: ast.stmt) -> Iterator[Import]:
    """Yield the import statements in a statement, itself included."""
    for node in ast.walk(statement):
        if isinstance(node, Import):
            yield node


def bound_name(node: Import, alias: ast.alias) -> str:
    """Return the name under which an import is known in the file."""
    if alias.asname:
        return alias.asname
    if isinstance(node, ast.Import):
        return alias.name.partition(".")[0]
    return alias.name


def defined_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines there."""
    if isinstance(statement, Definition):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, Import):
            names.update(bound_name(node, alias) for alias in node.names)
        elif isinstance(node, Definition):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def only_defines(statement: ast.stmt) -> bool:
    """Whether dropping a statement changes nothing but the names that it defines."""
    return isinstance(statement, Definition | Import | ast.Assign | ast.AnnAssign) and bool(defined_names(statement))


def used_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads, or changes in place."""
    changes_in_place = isinstance(statement, ast.AugAssign)
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and (changes_in_place or isinstance(node.ctx, ast.Load)):
            names.add(node.id)
    return names


def is_program(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == ...`, code that only runs in a program."""
    return isinstance(statement, ast.If) and "__name__" in used_names(statement)


def first_line(statement: ast.stmt) -> int:
    """Return the line number of a statement or of its first decorator."""
    lines = [statement.lineno]
    if isinstance(statement, Definition):
        lines += [decorator.lineno for decorator in statement.decorator_list]
    return min(lines)
