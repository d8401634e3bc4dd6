"""Running commands and imports in a process unable to import torch or another library."""

import json
import subprocess
import sys
from pathlib import Path

# Importing a module fails if it is None in sys.modules.
PROGRAM = """
import json, sys
sys.modules.update(torch=None, transformers=None)
from megatape.commands.cli.main import main
for words in json.load(sys.stdin):
    print(f"status {main(words)}", file=sys.stderr)
"""


def errors_without_torch(commands: list[list[str]], folder: Path) -> list[str]:
    """Run commands that must end with status 2 and one line, without importing torch or transformers.

    Args:
        commands: Words in each command.
        folder: Current directory.

    Returns:
        The error line of each command.
    """
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    lines = process.stderr.splitlines()
    assert lines[1::2] == ["status 2"] * len(commands), process.stderr
    return lines[::2]


# Argument: name of a library. Input: statements
WATCHED = """
import json, sys
for statement in json.load(sys.stdin):
    exec(statement)
    if sys.argv[1] in sys.modules:
        sys.exit(f"`{statement}` imports {sys.argv[1]}")
"""


def assert_not_imported(library: str, statements: list[str]) -> None:
    """Assert that statements import a library neither directly nor through others. The error names the first that does.

    Args:
        library: Library name.
        statements: Python statements, run one after another in a new process.
    """
    process = subprocess.run(
        [sys.executable, "-P", "-c", WATCHED, library],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
