"""promises.md names the tests of every promise in docs/reliability.md, and of what any program must do."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.helpers.checks.pages import ROOT


def _slow_by_test(path: Path) -> dict[str, bool]:
    """Return test functions in a file -> whether they are marked as slow."""
    functions = []
    file_is_slow = False
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            functions.append(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            file_is_slow = "pytest.mark.slow" in ast.unparse(node.value)
    slow = {}
    for function in functions:
        marks = [ast.unparse(decorator) for decorator in function.decorator_list]
        slow[function.name] = file_is_slow or "pytest.mark.slow" in marks
    return slow


def _slow_by_reference() -> dict[str, bool]:
    """Return references to tests -> whether all of their tests are slow.

    A reference is a path, `path::test`, or the name of a file or function that occurs once.
    """
    slow = {}
    names = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        file = path.relative_to(ROOT).as_posix()
        slow_by_test = _slow_by_test(path)
        slow[file] = all(slow_by_test.values())
        names.append((path.name, slow[file]))
        for test, is_slow in slow_by_test.items():
            slow[f"{file}::{test}"] = is_slow
            names.append((test, is_slow))
    counts = Counter(name for name, _ in names)
    for name, is_slow in names:
        if counts[name] == 1:
            slow[name] = is_slow
    return slow


def test_every_promise_has_tests() -> None:
    """docs/reliability.md and tests/promises.md list the same promises in the same order, except for the latter's last section.

    Each row names existing tests unambiguously, and is marked if all of them are slow.
    """
    _, heading, table = (ROOT / "docs/reliability.md").read_text().partition("## All promises\n")
    assert heading
    promises = re.findall(r"^\| (.+?\.) \| (?:.* )?\|$", table, re.MULTILINE)
    row = re.compile(r"^\| (.+?) \| (`.+`)( \(slow\))? \|$", re.MULTILINE)
    on_page, heading, not_on_page = (ROOT / "tests/promises.md").read_text().partition("| **What any program must do** | |\n")
    assert heading
    rows = row.findall(on_page)
    assert len(promises) > 50
    assert [promise for promise, *_ in rows] == promises
    unlisted_rows = row.findall(not_on_page)
    num_lines = sum(line.startswith("| ") for line in not_on_page.splitlines())
    assert len(unlisted_rows) == num_lines > 0, "a row of the last section names no test in backquotes"
    rows += unlisted_rows
    slow = _slow_by_reference()
    unknown = []
    wrong_marks = []
    for promise, tests, mark in rows:
        references = re.findall(r"`(.+?)`", tests)
        unknown += [reference for reference in references if reference not in slow]
        all_are_slow = all(slow.get(reference, False) for reference in references)
        if all_are_slow != bool(mark):
            wrong_marks.append(promise)
    assert not unknown, "these name no test, or several: write tests/x.py::test_y"
    assert not wrong_marks, "(slow) marks promises whose tests all run only with -m slow"
