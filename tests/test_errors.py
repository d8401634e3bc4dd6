"""Which exceptions and lines the package may have, and where: a UserError for a user, the logger for what is told."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.errors import PathError, path_errors

PACKAGE = Path(__file__).parents[1] / "megatape"
EXPORTED = "hf/modeling/"  # runs without our package


def _nodes(*exempt: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node of every module, but those in folders that are exempt and what only a module that is run does."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(exempt):
            continue
        tree = ast.parse(path.read_text())
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))]
        yield from ((f"{name}:{getattr(node, 'lineno', 0)}", node) for node in ast.walk(tree))


def test_a_user_meets_a_user_error() -> None:
    builtin = ("ValueError", "OSError", "FileNotFoundError", "FileExistsError")
    raised = [
        place
        for place, node in _nodes(EXPORTED)
        if isinstance(node, ast.Raise)
        and node.exc
        and ast.unparse(node.exc).startswith(tuple(f"{name}(" for name in builtin))
        and "errno." not in ast.unparse(node.exc)  # as the operating system would raise it
    ]
    assert not raised, "raise megatape.errors.UserError for what a user can cause, or assert"


def test_only_commands_print() -> None:
    prints = [
        place
        for place, node in _nodes(EXPORTED, "commands/")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, "use logging.getLogger(__name__)"


@pytest.mark.parametrize("path", ["file", "file/run"])
def test_a_file_in_place_of_a_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PathError, match=f"'{tmp_path / path}': a file is where a folder is needed: move it"), path_errors():
        (tmp_path / path).mkdir(exist_ok=True)
