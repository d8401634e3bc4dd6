"""Analyzes statements of a Python file: imports, defined names and used names."""

import ast
from collections.abc import Iterator

Import = ast.Import | ast.ImportFrom
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def imports_in(statement: ast.stmt) -> Iterator[Import]:
    """Yield the import statements in a statement, which may be an import statement itself."""
    for node in ast.walk(statement):
        if isinstance(node, Import):
            yield node


def bound_name(node: Import, alias: ast.alias) -> str:
    """Return the name that an import defines in the file."""
    if alias.asname:
        return alias.asname
    if isinstance(node, ast.Import):
        return alias.name.partition(".")[0]
    return alias.name


def defined_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines in its module."""
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
    """Whether a statement only defines names, so that dropping it has no other effect."""
    return isinstance(statement, Definition | Import | ast.Assign | ast.AnnAssign) and bool(defined_names(statement))


def used_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads or changes in place."""
    changes_in_place = isinstance(statement, ast.AugAssign)
    names = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and (changes_in_place or isinstance(node.ctx, ast.Load)):
            names.add(node.id)
    return names


def is_program(statement: ast.stmt) -> bool:
    """Whether a statement is `if __name__ == ...`, which only runs in programs."""
    return isinstance(statement, ast.If) and "__name__" in used_names(statement)


def first_line(statement: ast.stmt) -> int:
    """Return the line number of a statement, or its first decorator's."""
    lines = [statement.lineno]
    if isinstance(statement, Definition):
        lines += [decorator.lineno for decorator in statement.decorator_list]
    return min(lines)
