"""Errors that a user can correct are UserErrors, and only commands print."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.errors import PathError, path_errors

PACKAGE = Path(__file__).parents[1] / "megatape"
EXPORTED = "hf/modeling/"  # runs without our package
BUILTIN_ERRORS = ("ValueError", "OSError", "FileNotFoundError", "FileExistsError")


def _nodes(*exempt: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of every module with its place.

    Code below `if __name__ == "__main__"` is left out.

    Args:
        exempt: Beginnings of the paths of exempt modules.
    """
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(exempt):
            continue
        tree = ast.parse(path.read_text())
        tree.body = [statement for statement in tree.body if not _is_main_block(statement)]
        for node in ast.walk(tree):
            yield f"{name}:{getattr(node, 'lineno', 0)}", node


def _is_main_block(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)


def _raises_builtin(node: ast.AST) -> bool:
    """Whether a statement raises a builtin error, other than one of the operating system with its errno."""
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    raised = ast.unparse(node.exc)
    return raised.partition("(")[0] in BUILTIN_ERRORS and "errno." not in raised


def test_a_user_meets_a_user_error() -> None:
    places = [place for place, node in _nodes(EXPORTED) if _raises_builtin(node)]
    assert not places, "raise megatape.errors.UserError for what a user can cause, or assert"


def test_only_commands_print() -> None:
    places = []
    for place, node in _nodes(EXPORTED, "commands/"):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            places.append(place)
    assert not places, "use logging.getLogger(__name__)"


@pytest.mark.parametrize("path", ["file", "file/run"])
def test_a_file_in_place_of_a_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PathError, match=f"'{tmp_path / path}': a file is where a folder is needed: move it"), path_errors():
        (tmp_path / path).mkdir(exist_ok=True)
