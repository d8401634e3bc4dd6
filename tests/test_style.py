"""Files begin with their constants, and functions are short enough to be read at once."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.helpers.checks.import_graph import PACKAGE

MAX_BODY_LINES = 60
# Files of tables, ordered by subject instead of dependencies
FILES_OF_TABLES = ("registry.py", "lab/paper.py")


@cache
def _trees() -> dict[Path, ast.Module]:
    """Parse every module in the package. Done by the tests, because every process of the suite collects this file."""
    return {path.relative_to(PACKAGE): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def _assigned(statement: ast.stmt) -> set[str]:
    """Return the names that an assignment at the top of a module binds."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    names = set()
    for target in targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names |= {part.id for part in parts if isinstance(part, ast.Name)}
    return names


def _late_constants(tree: ast.Module) -> Iterator[str]:
    """Yield the constants after the first definition that do not depend on any definition before them."""
    defined: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(statement.name)
            continue
        names = _assigned(statement)
        if not defined:
            continue
        constants = {name for name in names if name.isupper()}
        if not constants:
            # Names defined this way include aliases of types.
            defined |= names
            continue
        used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} - names
        if used & defined:
            defined |= names
        else:
            yield from constants


def test_constants_stand_before_the_first_definition() -> None:
    late = []
    for path, tree in _trees().items():
        if str(path) in FILES_OF_TABLES:
            continue
        late += [f"{path}: {name}" for name in _late_constants(tree)]
    assert not late


def _is_kernel(function: ast.FunctionDef) -> bool:
    """Whether a function is a Triton kernel, which has to be one function to be compiled as one."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def _body_lines(function: ast.FunctionDef) -> int:
    """Return the number of lines of a function's body, without its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def _launches_kernels(function: ast.FunctionDef) -> bool:
    """Whether a function launches Triton kernels, whose many arguments have a line each."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(ast.unparse(call.func) == "_launch" for call in calls)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not _is_kernel(node) and not _launches_kernels(node):
            yield node


def test_no_body_is_longer_than_a_page() -> None:
    long = []
    for path, tree in _trees().items():
        for function in _functions(tree):
            num_lines = _body_lines(function)
            if num_lines > MAX_BODY_LINES:
                long.append(f"{path}: {function.name} has {num_lines} lines")
    assert not long
