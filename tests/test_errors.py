"""Which exceptions and lines the package may have, and where: a UserError for a user, the logger for what is told."""

import ast
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatape.runtime.logs import show_lines

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


@pytest.mark.parametrize(
    ("rank", "output", "errors"), [("0", "a step\n", "slow\nfailed\n"), ("3", "", "rank 3: slow\nfailed\n")]
)
def test_lines_of_ranks(
    rank: str, output: str, errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    logger = logging.getLogger("megatape.test")
    logger.info("a step")
    logger.warning("slow")
    logger.error("failed")
    logger.debug("raised here")
    assert capsys.readouterr() == (output, errors)
    show_lines(verbose=True)
    logger.debug("raised here")
    show_lines()
    assert capsys.readouterr() == ("", "raised here\n")


def test_a_reader_who_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    logging.getLogger("megatape.test").warning("slow")
