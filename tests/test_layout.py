"""Test files are independent: shared code is in tests/helpers/, and conftest files only have fixtures and hooks."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
# A file or folder of tests in a shell script or a Makefile
TEST_PATH = re.compile(r"\btests(?:/[\w.-]+)+")
NAMED = re.compile(r"(tests\.[\w.]+)(?::\w+)?")  # A module, or a function called by workers, named in a string


@cache
def _trees() -> dict[Path, ast.Module]:
    """Parse every file in tests/. Done by the tests, because every process of the suite collects this file."""
    paths = [path for path in TESTS.rglob("*.py") if "fixtures" not in path.parts]
    return {path.relative_to(TESTS): ast.parse(path.read_text()) for path in paths}


def _modules_of(tree: ast.Module) -> Iterator[str]:
    """Yield modules that a file imports or names. For `from a import b` this includes a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (match := NAMED.fullmatch(node.value)):
            yield match[1]


def test_no_test_file_or_conftest_is_used() -> None:
    """Neither tests nor helpers may import a test file or conftest.py. A test file may name itself for its workers."""
    for path, tree in _trees().items():
        itself = ".".join(("tests", *path.with_suffix("").parts))
        for module in set(_modules_of(tree)) - {itself}:
            used = module.startswith("tests.") and re.match(r"test_|conftest$", module.rpartition(".")[2])
            assert not used, f"{path} uses {module}: what is shared lies in tests/helpers"


def test_scripts_name_existing_tests() -> None:
    """A test file that moves must be found by the targets of the Makefile and by the scripts of .ci/."""
    for script in (ROOT / "Makefile", *(ROOT / ".ci").iterdir()):
        names = TEST_PATH.findall(script.read_text())
        missing = [name for name in names if not (ROOT / name).exists()]
        assert not missing, f"{script.name} names {missing}"


def test_conftests_have_fixtures_and_hooks_only() -> None:
    for path, tree in _trees().items():
        for node in tree.body if path.name == "conftest.py" else ():
            assert not isinstance(node, ast.ClassDef), f"{path}: {node.name}"
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("pytest_"):
                assert any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list), f"{path}: {node.name}"


def test_modules_that_hold_to_a_bound_are_numerical() -> None:
    """Modules starting ranks need no mark: most compare runs with each other."""
    for path, tree in _trees().items():
        imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        if path.name.startswith("test_") and "bounds" in imported and not imported & {"run_workers", "run_cases", "Workers"}:
            marks = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            assert "pytest.mark.numerics" in marks, f"{path}: pytestmark = pytest.mark.numerics, or a decorator on some tests"
