"""Commands, configuration keys, files, make targets and tests that the documentation names exist."""

import argparse
import ast
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from megatape.commands import evaluate
from megatape.commands.cli.command_line import command_line
from megatape.commands.cli.table import COMMANDS as NAMED
from megatape.config import Config, load_config
from megatape.config.fields.annotations import sections_in
from megatape.errors import UserError
from megatape.imports import import_given
from megatape.registry import OPTIMIZERS, SCHEDULES
from megatape.utils.values.options import read_options
from tests.helpers.checks.pages import COMMANDS, NEW_FILES, PAGES, ROOT, Command, code_in

PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"]
# Files of an exported model, which look like configuration keys
NOT_KEYS = {"model.safetensors", "model.safetensors.index.json"}
COMMAND_WORDS = {word for name in NAMED for word in name.split()}
# Scripts calling no command of the package
STANDALONE = ("quickstart.py", "gpu_run.py")
SCRIPTS = [path for folder in ("launch", "data_prep") for path in (ROOT / folder).rglob("*.py") if path.name not in STANDALONE]
# Text in a script calling a command
DISPATCH = re.compile(
    r'"""`megatape [\w ]+` (?:from a clone|for a launcher): `[^`]+`\."""\n\nimport sys\nfrom pathlib import Path\n\n'
    r"sys\.path\.insert\(0, str\(Path\(__file__\)\.resolve\(\)\.parents\[[12]\]\)\)  # .*\n\n"
    r"from megatape\.__main__ import main\n\n"
    r'if __name__ == "__main__":\n    sys\.exit\(main\(\[(?:"\w+", )+\*sys\.argv\[1:\]\]\)\)\n'
)
README_COMMANDS = [command for command in COMMANDS if command.page.name == "README.md"]
LAUNCHES_ON_ALL_GPUS = [command for command in README_COMMANDS if command.words[:2] == ("deepspeed", "launch/pretrain.py")]


def _parser_words(command: Command) -> list[str] | None:
    """Return the words following `megatape`, or following a script, after its command. None if there is neither."""
    for index, word in enumerate(command.words):
        remaining = list(command.words[index + 1 :])
        starts_a_command = index == 0 or "=" in command.words[index - 1]
        if word == "megatape" and remaining and starts_a_command:
            return remaining
        script = ROOT / word
        if re.fullmatch(r"(launch|data_prep)/[\w/]+\.py", word) and script.name not in STANDALONE and index > 0:
            found = re.search(r"main\((\[.*?), \*sys\.argv", script.read_text())
            assert found, f"{script} names no command"
            return [*ast.literal_eval(found[1] + "]"), *remaining]
    return None


@pytest.mark.usefixtures("own_modules")
def test_commands_parse() -> None:
    """The parser accepts every command line on a page, with its options and its configuration."""
    commands = command_line()
    num_parsed = 0
    refused = []
    for command in COMMANDS:
        words = _parser_words(command)
        if words is None:
            continue
        num_parsed += 1
        if words[0] not in COMMAND_WORDS and not words[0].startswith("-"):
            refused.append(f"{command}: there is no such command")
            continue
        try:
            _parse(commands, command, words)
        except (SystemExit, UserError) as error:
            refused.append(f"{command}: {error}")
    assert num_parsed > 50
    assert not refused


def _parse(commands: argparse.ArgumentParser, command: Command, words: list[str]) -> None:
    """Parse a command line, read its options and load its configuration."""
    if not command.complete and "--config" not in words:
        words = [*itertools.takewhile(lambda word: word in COMMAND_WORDS, words), "--help"]
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


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("command", LAUNCHES_ON_ALL_GPUS, ids=str)
def test_readme_trains_on_all_gpus_of_a_machine(command: Command, num_gpus: int) -> None:
    """Without a number of ranks, the batch of every launch in README divides evenly among the usual numbers of GPUs."""
    options = command.words[2:]
    overrides = [value for option, value in itertools.pairwise(options) if option == "--set"]
    config = load_config(ROOT / options[options.index("--config") + 1], overrides)
    assert config.num_micro_batches(num_gpus) >= 1


def test_readme_installs_what_its_studies_need() -> None:
    """quickstart.py installs no extras, so README installs them before the first study, which needs scipy."""
    is_study = [command.words[:3] == ("megatape", "study", "suite") for command in README_COMMANDS]
    before = README_COMMANDS[: is_study.index(True)]
    assert any(command.words[:2] == ("pip", "install") and ".[suite,plots" in command.words for command in before)


def test_requirements_with_extras_are_quoted() -> None:
    """In zsh, unquoted brackets are a pattern matching file names, and the answer is "no matches found"."""
    unquoted = [page.name for page in PAGES if re.search(r"-e +\.\[", page.read_text())]
    assert not unquoted


def _keys(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        for part in sections_in(field.annotation):
            yield from (f"{name}.{key}" for key in _keys(part))


def test_keys_exist() -> None:
    """Checks `--set section.key=value`, with or without a command, and every `section.key` in a sentence."""
    keys = set(_keys(Config))
    for section, entries in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        keys |= {f"{section}.{key}" for entry in entries.values() for key in _keys(entry.load_options())}
    for command in COMMANDS:
        for before, word in zip(("", *command.words), command.words, strict=False):
            key = word.split("=")[0]
            section, _, name = key.partition(".")
            is_key = section in Config.model_fields and re.fullmatch(r"[a-z_.]+", name)
            stands_alone = len(command.words) == 1
            if is_key and (before == "--set" or stands_alone):
                assert key in keys | NOT_KEYS, command


def test_paths_exist() -> None:
    """Checks repository paths on all pages, including tests to run, but not in the changelog, which names removed files."""
    folders = "megatape|tests|launch|data_prep|configs|docs|docker|examples|.ci"
    missing = set()
    for command in COMMANDS:
        if command.page not in PROSE:
            continue
        for word in command.words:
            is_path = re.fullmatch(rf"(?:{folders})/[\w./]+", word)
            if is_path and "NAME" not in word and word not in NEW_FILES and not (ROOT / word).exists():
                missing.add(f"{command.page.name}: {word}")
    assert not missing


def test_readme_and_ci_run_the_same_commands() -> None:
    """README's first screen shows how to clone, run and test, and CI runs the same two commands."""
    first_screen = (ROOT / "README.md").read_text().splitlines()[:24]
    assert "git clone ADDRESS_OF_THIS_REPOSITORY megatape" in first_screen
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


def _names_of_tests() -> set[str]:
    """Return test functions, and names and paths of all files in tests/."""
    files = list((ROOT / "tests").rglob("*.py"))
    functions = {name for path in files for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)}
    return functions | {path.name for path in files} | {path.relative_to(ROOT).as_posix() for path in files}


def test_scripts_only_dispatch() -> None:
    """Scripts in launch/ and data_prep/ have no code or documentation of their own."""
    others = [script.name for script in SCRIPTS if not DISPATCH.fullmatch(script.read_text())]
    assert not others


def test_tests_exist() -> None:
    """Checks test functions and test files on all pages."""
    names = _names_of_tests() | {Path(path).name for path in NEW_FILES}
    named = {word for page in PAGES for code, _ in code_in(page) for word in re.findall(r"\btest_\w+(?:\.py)?", code)}
    assert not {name for name in named if name not in names}
