"""Errors that a user can correct are UserErrors, and only commands print."""

import ast
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from megatape.commands.cli.command import load_command
from megatape.commands.cli.table import COMMANDS, is_group
from megatape.commands.options.task_options import options_of
from megatape.errors import MissingPath, PathError, UserError, content_errors, flag, marked_message, path_errors
from megatape.lab.tasks.registry import TASKS

PACKAGE = Path(__file__).parents[1] / "megatape"
EXPORTED = "hf/modeling/"  # runs without our package
# Their messages name fields of records, such as `system`, in backquotes.
WITH_FIELDS = ("data/finetuning/", "lab/tasks/scrolls/questions.py")
BUILTIN_ERRORS = ("ValueError", "OSError", "FileNotFoundError", "FileExistsError")


def _nodes(*exempt: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of every module with its place.

    Code below `if __name__ == "__main__"` is left out.

    Args:
        exempt: Beginnings of the paths of exempt modules.
    """
    for name, tree in _trees().items():
        if not name.startswith(exempt):
            for node in ast.walk(tree):
                yield f"{name}:{getattr(node, 'lineno', 0)}", node


@cache
def _trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every module, by name."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        tree.body = [statement for statement in tree.body if not _is_main_block(statement)]
        trees[path.relative_to(PACKAGE).as_posix()] = tree
    return trees


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


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the messages that a `raise` statement writes, without the values in them."""
    if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
        return
    for argument in node.exc.args:
        if isinstance(argument, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in argument.values)
        elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value


def _option_names() -> set[str]:
    """Return the names of all options of commands and evaluation tasks."""
    names = {*options_of(list(TASKS)).model_fields}
    for command in COMMANDS:
        if not is_group(command):
            names |= load_command(command).options.model_fields.keys()
    return names


def test_messages_mark_options() -> None:
    """A name that is written out would not be shown as a flag."""
    names = _option_names()
    unmarked = []
    for place, node in _nodes(*WITH_FIELDS):
        for text in _texts(node):
            words = {*re.findall(r"`(\w+)`", text), *re.findall(r"^(\w+)(?:: | is missing)", text)}
            if words & names:
                unmarked.append(f"{place}: {text}")
    assert not unmarked, "mark options by megatape.errors.flag"


@pytest.mark.parametrize("kind", [UserError, MissingPath])
def test_python_shows_names_of_options(kind: type[UserError]) -> None:
    error = kind(f"{flag('output')} is a: give {flag('dry_run')}")
    assert str(error) == "output is a: give `dry_run`"
    assert f"{error}" == str(error)
    assert marked_message(pickle.loads(pickle.dumps(error))) == marked_message(error)


def test_a_message_that_is_taken_over_stays_marked() -> None:
    with pytest.raises(UserError) as caught, content_errors("a.json: not a chat", "give another file", UserError):
        raise UserError(f"{flag('tools')} is missing")
    assert str(caught.value) == "a.json: not a chat (`tools` is missing): give another file"
    assert flag("tools") in marked_message(caught.value)


@pytest.mark.parametrize("path", ["file", "file/run"])
def test_a_file_in_place_of_a_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PathError, match=f"'{tmp_path / path}': a file is where a folder is needed: move it"), path_errors():
        (tmp_path / path).mkdir(exist_ok=True)
