"""README and docs/ match the code: commands parse, configuration keys, files and extras exist, prose is wrapped."""

import argparse
import ast
import inspect
import itertools
import re
import runpy
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
import yaml
from pydantic import BaseModel

from megatape import registry
from megatape.commands import evaluate
from megatape.commands.cli.command_line import command_line
from megatape.commands.cli.table import COMMANDS as NAMED
from megatape.config import Config, load_config
from megatape.config.annotations import sections_in
from megatape.data.cleaning.rule import TextRule
from megatape.errors import UserError
from megatape.imports import import_given
from megatape.model.block import Block
from megatape.registry import OPTIMIZERS, SCHEDULES
from megatape.utils.options import read_options

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"]
# Placeholders for the reader, as something that parses.
PLACEHOLDERS = {"FILE": "configs/tape_tiny.json", "my_model.json": "configs/tape_155m.json", "K": "3"}
NOT_KEYS = {"model.safetensors", "model.safetensors.index.json"}  # of an exported model
# Files that a page asks its reader to write.
NEW_FILES = {path for page in PAGES for path in re.findall(r"\bWrite\s+`([\w./]+)`", page.read_text())}
NAMES = {word for name in NAMED for word in name.split()}


@dataclass(frozen=True)
class Command:
    """A command line of a page, split into words. complete: it is a line of a code block; a sentence may name only a part."""

    page: Path
    words: tuple[str, ...]
    complete: bool

    def __str__(self) -> str:
        return f"{self.page.name}: {shlex.join(self.words)}"


def _code(page: Path) -> Iterator[tuple[str, bool]]:
    """Lines of code blocks, with continuations joined (True), and code inside sentences (False)."""
    text = page.read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if not language:
            yield from ((line, True) for line in re.sub(r"\\\n\s*", "", block).splitlines())
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from ((re.sub(r"\s+", " ", code), False) for code in re.findall(r"`([^`]+)`", prose))


def _words(line: str) -> tuple[str, ...]:
    """A line as a shell splits it, with a value for each placeholder; empty if it is not a command."""
    try:
        words = shlex.split(line.replace("$encoding", "rope"), comments=True)
    except ValueError:
        return ()
    # Brackets mark what is optional, unless they are a list's.
    bare = [word if "=[" in word else word.strip("[]") for word in words]
    return tuple(PLACEHOLDERS.get(word, word) for word in bare)


COMMANDS = list(
    dict.fromkeys(Command(page, words, complete) for page in PAGES for line, complete in _code(page) if (words := _words(line)))
)


def _typed(command: Command) -> list[str] | None:
    """The words that our parser gets: those after `megatape`, or after a script that calls a command."""
    for index, word in enumerate(command.words):
        if word == "megatape" and index + 1 < len(command.words) and (index == 0 or "=" in command.words[index - 1]):
            return list(command.words[index + 1 :])
        script = ROOT / word
        if re.fullmatch(r"(launch|data_prep)/[\w/]+\.py", word) and script.name != "quickstart.py" and index > 0:
            found = re.search(r"main\((\[.*?), \*sys\.argv", script.read_text())
            assert found, f"{script} names no command"
            return [*ast.literal_eval(found[1] + "]"), *command.words[index + 1 :]]
    return None


SCRIPTS = [path for folder in ("launch", "data_prep") for path in (ROOT / folder).rglob("*.py") if path.name != "quickstart.py"]
DISPATCH = re.compile(
    r'"""`megatape [\w ]+` (?:from a clone|for a launcher): `[^`]+`\."""\n\nimport sys\nfrom pathlib import Path\n\n'
    r"sys\.path\.insert\(0, str\(Path\(__file__\)\.resolve\(\)\.parents\[[12]\]\)\)  # .*\n\n"
    r"from megatape\.__main__ import main\n\n"
    r'if __name__ == "__main__":\n    sys\.exit\(main\(\[(?:"\w+", )+\*sys\.argv\[1:\]\]\)\)\n'
)
TYPED = [(command, typed) for command in COMMANDS if (typed := _typed(command)) is not None]


@pytest.mark.usefixtures("own_modules")
def test_commands_parse() -> None:
    """Every command line of a page is accepted by the parser, with its options and its configuration."""
    assert len(TYPED) > 50
    commands = command_line()
    refused = []
    for command, words in TYPED:
        if words[0] not in NAMES and not words[0].startswith("-"):
            refused.append(f"{command}: there is no such command")
            continue
        try:
            _parse(commands, command, words)
        except (SystemExit, UserError) as error:
            refused.append(f"{command}: {error}")
    assert not refused


def _parse(commands: argparse.ArgumentParser, command: Command, words: list[str]) -> None:
    """Parse a command line, read its options and load its configuration."""
    if not command.complete and "--config" not in words:
        words = [*itertools.takewhile(lambda word: word in NAMES, words), "--help"]
    try:
        args = commands.parse_args(words)
    except SystemExit as end:
        if end.code == 0:  # --help
            return
        raise
    kind, run = args.run.args
    for text in getattr(args, "imports", ()):
        import_given(text)
    options = read_options(kind, vars(args))
    if run is evaluate.run:
        evaluate.parse_rest(options)
    config = getattr(args, "config", None)
    if config is not None:
        load_config(ROOT / config, getattr(args, "set", []))


def _keys(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        for part in sections_in(field.annotation):
            yield from (f"{name}.{key}" for key in _keys(part))


def test_keys_exist() -> None:
    """Keys of `--set section.key=value`, with or without a command, and every `section.key` in a sentence."""
    keys = set(_keys(Config))
    for section, entries in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        keys |= {f"{section}.{key}" for entry in entries.values() for key in _keys(entry.load_options())}
    for command in COMMANDS:
        for before, word in zip(("", *command.words), command.words, strict=False):
            key = word.split("=")[0]
            section, _, name = key.partition(".")
            if (
                section in Config.model_fields
                and re.fullmatch(r"[a-z_.]+", name)
                and (before == "--set" or len(command.words) == 1)
            ):
                assert key in keys | NOT_KEYS, command


def test_paths_exist() -> None:
    """Files and folders of the repository that a page names, and the tests it runs. The changelog also names removed files."""
    folders = "megatape|tests|launch|data_prep|configs|docs|docker|examples|.ci"
    missing = {
        f"{command.page.name}: {word}"
        for command in COMMANDS
        if command.page in PROSE
        for word in command.words
        if re.fullmatch(rf"(?:{folders})/[\w./]+", word)
        and not (ROOT / word).exists()
        and "NAME" not in word
        and word not in NEW_FILES
    }
    assert not missing


def test_links_exist() -> None:
    """Links of README and its neighbors; building the site checks those inside docs/."""
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{page.name}: {target}"


def test_readme_and_ci_run_the_same_commands() -> None:
    """The first screen of README shows how to clone, run and test, and CI runs the same two commands."""
    first_screen = (ROOT / "README.md").read_text().splitlines()[:24]
    assert "git clone URL megatape && cd megatape" in first_screen
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    for readme_command, ci_command in (
        ("python3 launch/quickstart.py", "python3 launch/quickstart.py --steps 10"),
        ("python3 launch/quickstart.py test", "python3 launch/quickstart.py test"),
    ):
        assert readme_command in first_screen, f"README.md does not show `{readme_command}` on its first screen"
        assert ci_command in ci, f".ci/run does not run `{ci_command}`"


def test_make_targets_and_extras_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for command in COMMANDS:
        if command.words[0] == "make" and len(command.words) > 1:
            assert command.words[1] in targets, command
        for word in command.words:
            for extra in re.findall(r"^-e\s*\.\[([\w-]+)|^\.\[([\w-]+)", word):
                assert next(filter(None, extra)) in extras, command


def _nav(entries: object) -> Iterator[str]:
    """Pages of the site's navigation."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, list | dict):
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from _nav(entry)


SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
NAV = list(_nav(SITE["nav"]))


def test_navigation_has_every_page() -> None:
    """Tables of results in full are appendices, which other pages link to. Designs of what is not built are not on the site."""
    appendices = {"shift", "efficiency", "addition", "ablations", "language", "finetune", "suite", "speed", "planned"}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    pages = {page for page in pages if not page.startswith("designs/")}
    assert sorted(NAV) == sorted(pages - {f"results/{name}.md" for name in appendices})


def test_first_change_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The rule of docs/first_change.md passes the test that the page writes for it, and its line names it."""
    page = (ROOT / "docs/first_change.md").read_text()
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
    for module in ("compilation", "memory", "sequence_parallel"):
        text = (ROOT / "megatape/model" / f"{module}.py").read_text()
        wrappers |= set(re.findall(r"^class (\w+Block)\(", text, re.MULTILINE))
    assert len(wrappers) > 4
    assert not {name for name in wrappers if f"`{name}`" not in page}


def test_architecture_lists_every_private_name() -> None:
    """docs/architecture.md has every private name of DeepSpeed and torch, with the versions they were read from."""
    page = (ROOT / "docs/architecture.md").read_text()
    internals = {name: (ROOT / "megatape" / name).read_text() for name in ("zero/internals.py", "utils/torch_internals.py")}
    for text in internals.values():
        version = re.search(r"version (\d[\d.]*\d)", text)
        assert version
        assert version[1] in page
    listed = (ROOT / "tests/zero/test_internals.py").read_text()
    names = re.findall(r"^PRIVATE_NAMES = (\{.*?^\})", listed, re.MULTILINE | re.DOTALL)
    deepspeed = {name for group in ast.literal_eval(names[0]).values() for name in group}
    torch = set(re.findall(r"^def (\w+)", internals["utils/torch_internals.py"], re.MULTILINE))
    assert not {name for name in deepspeed | torch if f"`{name}`" not in page}


def _definitions(path: Path) -> set[str]:
    """Functions, classes and methods of a module, methods also as `Class.method`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_architecture_names_exist() -> None:
    """Files that docs/architecture.md names, their `file.py:function`, and each `Class` and `Class.method` of its text."""
    page = re.sub(r"^## Private names.*", "", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE | re.DOTALL)
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


def _literals() -> Iterator[str]:
    """Texts of the package: literals, with an ellipsis for each value of an f-string, and templates."""
    for path in (ROOT / "megatape").rglob("*.py"):
        inside = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in ast.walk(node) if part is not node}
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                yield node.value
    for suffix in ("html", "jinja", "sh"):
        yield from (path.read_text() for path in (ROOT / "megatape").rglob(f"*.{suffix}"))


def test_messages_exist() -> None:
    """The fixed parts of every message in docs/troubleshooting.md follow each other in a text of the code."""
    quoted = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(quoted) > 40
    literals = "\0".join(_literals())
    unknown = [
        message
        for message in quoted
        if not re.search("[^\0]*?".join(re.escape(part.strip()) for part in message.split("…") if part.strip()), literals)
    ]
    assert not unknown


def _names_of_tests() -> set[str]:
    """Test functions, and files of tests by name and by path."""
    files = list((ROOT / "tests").rglob("*.py"))
    functions = {name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)}
    return functions | {path.name for path in files} | {path.relative_to(ROOT).as_posix() for path in files}


def _slow_by_test(path: Path) -> dict[str, bool]:
    """Whether each test function of a file is slow."""
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
    """Whether all tests of a reference are slow.

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
    """docs/reliability.md and tests/promises.md have the same promises in the same order.

    Each promise names tests that exist, so that no other test can be meant, and is marked if all of them are slow.
    """
    page = (ROOT / "docs/reliability.md").read_text()
    promises = [" ".join(promise.split()) for promise in re.findall(r"^\* \*\*(.+?)\*\*", page, re.MULTILINE | re.DOTALL)]
    rows = re.findall(r"^\| (.+?) \| (`.+`)( \(slow\))? \|$", (ROOT / "tests/promises.md").read_text(), re.MULTILINE)
    assert len(promises) > 60
    assert [promise for promise, *_ in rows] == promises
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


def test_scripts_only_dispatch() -> None:
    """A script of launch/ or data_prep/ has no code or documentation that its command lacks."""
    others = [script.name for script in SCRIPTS if not DISPATCH.fullmatch(script.read_text())]
    assert not others


def test_tests_exist() -> None:
    """Test functions and files that a page names."""
    names = _names_of_tests() | {Path(path).name for path in NEW_FILES}
    named = {word for page in PAGES for code, _ in _code(page) for word in re.findall(r"\btest_\w+(?:\.py)?", code)}
    assert not {name for name in named if name not in names}


def test_picture_of_results_has_its_tables() -> None:
    """The tables that docs/figures/draw.py reads are in docs/results/."""
    script = runpy.run_path(str(ROOT / "docs/figures/draw.py"))
    assert len(script["draw"]().axes) == 3


def test_the_block_shown_in_the_docs_is_the_code() -> None:
    """docs/model.md quotes Block.forward, which stays short enough to be read as the equation."""
    page = (ROOT / "docs/model.md").read_text()
    quoted = page.split("```python\n")[1].split("```")[0].strip()
    body = dedent(inspect.getsource(Block.forward).split('"""')[-1]).strip()
    assert body == quoted
