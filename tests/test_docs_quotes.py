"""Code, names and messages that the documentation quotes are those of the package."""

import ast
import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from megatape import registry
from megatape.data.cleaning.rule import TextRule
from megatape.model.block import Block
from tests.helpers.checks.pages import PAGES, ROOT, code_in
from tests.helpers.checks.private_names import PRIVATE_NAMES

# First words of code in sentences that is no message
OTHER_FIRST_WORDS = ("megatape", "python", "pip", "srun", "deepspeed", "make", "tensorboard", "from", "steps")


def test_first_change_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cleaning rule in CONTRIBUTING.md passes the page's own test, and the registry line names it."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rule, line, test = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    entry: registry.Entry = eval(f"{{{line}}}", vars(registry))["line_length"]
    name, _, kind = entry.target.partition(":")
    for file, text in (("rule.py", rule), ("test.py", test)):
        (tmp_path / file).write_text(text)
    module = ModuleType(name)
    vars(module).update(runpy.run_path(str(tmp_path / "rule.py"), run_name=name))
    monkeypatch.setitem(sys.modules, name, module)
    assert issubclass(getattr(module, kind), TextRule)
    runpy.run_path(str(tmp_path / "test.py"))["test_the_longest_line_decides"]()


def test_architecture_lists_every_wrapper_of_blocks() -> None:
    """docs/generate.py once wrote the list of layers over the table of wrappers."""
    page = (ROOT / "docs/architecture.md").read_text()
    wrappers = set()
    for path in (ROOT / "megatape/model/wrappers").glob("*.py"):
        wrappers |= set(re.findall(r"^class (\w+Block)\(", path.read_text(), re.MULTILINE))
    assert len(wrappers) > 4
    assert not {name for name in wrappers if f"`{name}`" not in page}


def test_definitions_list_every_encoding() -> None:
    """The model's page names every encoding of the registry, and the page of definitions has a row for each."""
    names = set(registry.ENCODINGS)
    for page in ("docs/model.md", "docs/results/definitions.md"):
        text = (ROOT / page).read_text()
        assert not {name for name in names if f"`{name}`" not in text}, page


def test_suite_tasks_are_listed() -> None:
    """Both pages about the suite name every task."""
    for page in ("docs/suite_explained.md", "docs/results/tasks.md"):
        text = (ROOT / page).read_text()
        assert not {name for name in registry.SYNTHETIC_TASKS if f"`{name}`" not in text}, page


def test_internals_lists_every_private_name() -> None:
    """tests/private_names.md lists every private name used from DeepSpeed and torch, with the versions read."""
    page = (ROOT / "tests/private_names.md").read_text()
    files = ("zero/setup/internals.py", "utils/pytorch/torch_internals.py")
    internals = {name: (ROOT / "megatape" / name).read_text() for name in files}
    for text in internals.values():
        version = re.search(r"version (\d[\d.]*\d)", text)
        assert version
        assert version[1] in page
    deepspeed = {name for group in PRIVATE_NAMES.values() for name in group}
    torch = set(re.findall(r"^def (\w+)", internals["utils/pytorch/torch_internals.py"], re.MULTILINE))
    assert not {name for name in deepspeed | torch if f"`{name}`" not in page}


def _definitions(path: Path) -> set[str]:
    """Return the functions, classes and methods defined in a module, methods also as `Class.method`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_architecture_names_exist() -> None:
    """Checks every file, `file.py:function`, `Class` and `Class.method` in docs/architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text()
    files = {path.relative_to(ROOT / "megatape").as_posix(): _definitions(path) for path in (ROOT / "megatape").rglob("*.py")}
    everything = set().union(*files.values())
    missing = []
    for code in re.findall(r"`([\w./:]+)`", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)):
        file, _, name = code.partition(":")
        if file.endswith(".py") and "/" in file and not file.startswith("tests/"):
            file = file.removeprefix("megatape/")
            found = file in files and (not name or name in files[file])
        else:
            found = not re.fullmatch(r"[A-Z][a-z]\w+(\.\w+)?", code) or code in everything
        if not found:
            missing.append(code)
    assert not missing


def _shown(part: ast.expr) -> str:
    """Return part of an f-string as docs quote it: a marked option as its flag, other values as an ellipsis."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "flag":
        argument = part.value.args[0]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return f"--{argument.value.replace('_', '-')}"
    return "…"


def _literals() -> Iterator[str]:
    """Yield all text in the package: literals, f-strings as docs quote them, and templates."""
    for path in (ROOT / "megatape").rglob("*.py"):
        inside = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in ast.walk(node) if part is not node}
                yield "".join(_shown(part) for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield node.value
    for suffix in ("html", "jinja", "sh"):
        yield from (path.read_text() for path in (ROOT / "megatape").rglob(f"*.{suffix}"))


def _quoted_in_troubleshooting() -> list[str]:
    """Return all messages in the first columns of docs/troubleshooting.md."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    first_cells = re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
    return [message for cell in first_cells for message in re.findall(r"`([^`]+)`", cell)]


def _quoted_in_prose() -> list[str]:
    """Return all messages longer than 40 characters on other pages, with ellipses for ranks and numbers."""
    messages = []
    for page in PAGES:
        for code, is_line in code_in(page):
            is_message = not is_line and len(code) > 40 and re.fullmatch(r"[a-z]+( [\w().,:;'-]+){4,}", code)
            if is_message and code.split()[0] not in OTHER_FIRST_WORDS:
                messages.append(re.sub(r"(ranks?|step) \d+([-, ]+\d+)*( \([^)]*\))?|\d+", "…", code))
    return messages


def _is_in_code(message: str, literals: str) -> bool:
    """Whether a message's fixed parts occur in one literal, in their order."""
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    return re.search("[^\0]*?".join(parts), literals) is not None


def test_messages_exist() -> None:
    """The code has every quoted message: all of docs/troubleshooting.md, and the long ones of other pages."""
    literals = "\0".join(_literals())
    in_troubleshooting = _quoted_in_troubleshooting()
    in_prose = _quoted_in_prose()
    assert len(in_troubleshooting) > 30
    assert len(in_prose) > 3
    unknown = [message for message in [*in_troubleshooting, *in_prose] if not _is_in_code(message, literals)]
    assert not unknown


def test_the_block_shown_in_the_docs_is_the_code() -> None:
    """A page quotes both halves of Block.forward, keeping them short enough to be read as the equation."""
    page = (ROOT / "docs/tape_in_five_minutes.md").read_text()
    block = page.split("```python\n")[1].split("```")[0]
    quoted = [half.partition("\n")[2].strip() for half in block.split("\n\n")]
    halves = [inspect.getsource(half).split('"""')[-1] for half in (Block.attend, Block.feed_forward)]
    assert quoted == [dedent(half).strip() for half in halves]
