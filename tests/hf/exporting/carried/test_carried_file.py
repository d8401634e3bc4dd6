"""Rewritten files of exports: dropped statements, kept statements and errors."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from megatape.errors import UserError
from megatape.hf.exporting.carried.carried_file import CarriedFile, file_of
from megatape.hf.exporting.carried.collect import collect_files

HEAD = "from megatape.encodings.encoding import Encoding\n"
CARRIED_HEAD = "from .encoding import Encoding\n"
CLASS = "class Own(Encoding):\n    pass\n"
# Definitions each using the previous one, with an import spanning several lines and a decorator
CHAIN = """from megatape.optim.optimizer import (
    Group,
)
from functools import cache
GROUPS: list[Group] = []
@cache
def of_groups(count: int) -> int:
    return count + len(GROUPS)
"""


def carried(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str, name: str = "carried_module") -> CarriedFile:
    """Return the rewritten file with this code after the import of Encoding."""
    (folder / f"{name}.py").write_text(HEAD + code)
    monkeypatch.syspath_prepend(folder)
    return CarriedFile(name)


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (CLASS, CLASS),
        # An import lacks only one name.
        (f"from megatape.distributed.mesh import SINGLE, AXES\n{CLASS}", f"from .stand_ins import SINGLE\n{CLASS}"),
        (f"import math, megatape.config\n{CLASS}", f"import math\n{CLASS}"),
        (f"{CHAIN}{CLASS}", CLASS),
        # Imports used by dropped statements only are dropped. Others stay even if nothing uses them.
        (
            f"import json\nimport math\nfrom megatape.config import Config\ndef show(c: Config): print(json.dumps(c))\n{CLASS}",
            f"import math\n{CLASS}",
        ),
        # The registry, in any form.
        (f"from megatape import registry\n{CLASS}registry.ENCODINGS.update(own=registry.EncodingEntry('a:Own', 'b'))\n", CLASS),
        # A logger uses the module's name, but is kept.
        (
            f"import logging\nLOG = logging.getLogger(__name__)\n{CLASS}",
            f"import logging\nLOG = logging.getLogger(__name__)\n{CLASS}",
        ),
        # Unicode line separators do not end a line in Python.
        (f"SIGN = '\u2028'\nfrom megatape.config import Config\n{CLASS}", f"SIGN = '\u2028'\n{CLASS}"),
        (f"try:\n    from megatape.config import Config\nexcept ImportError:\n    Config = None\n{CLASS}", CLASS),
    ],
)
def test_needed_statements_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, expected: str) -> None:
    file = carried(monkeypatch, tmp_path, code)
    file.check({"Own"})
    assert file.text == CARRIED_HEAD + expected


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(
    ("code", "names", "message"),
    [
        (f"from megatape.config import Config\n{CLASS}SIZE = len(Config.model_fields)\n", {"Own", "SIZE"}, "and SIZE needs it"),
        (f"from megatape.config import Config\n{CLASS}", {"*"}, "and Config needs it"),
        (f"from megatape.config import Config\n{CLASS}Own.size = len(Config.model_fields)\n", {"Own"}, "and Own needs it"),
        ("from megatape.config import Config\nSIZE = 1\nSIZE += len(Config.model_fields)\n", {"SIZE"}, "and SIZE needs it"),
        (
            "try:\n    from megatape.config import Config as Base\nexcept ImportError:\n    Base = object\n",
            {"Base"},
            "line 3: .*Base",
        ),
    ],
)
def test_unavailable_definitions_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, names: set[str], message: str
) -> None:
    """Statements that change a definition count as well: without them the definition would compute something else."""
    file = carried(monkeypatch, tmp_path, code)
    with pytest.raises(UserError, match=f"megatape.config.Config is not in exported models.*{message}|{message}.*"):
        file.check(names)


def test_a_module_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_up", ModuleType("made_up"))
    with pytest.raises(UserError, match="the module made_up has no file that an export could carry"):
        collect_files({"made_up": {"Own"}}, {})


@pytest.mark.usefixtures("own_modules")
def test_statements_that_share_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = carried(monkeypatch, tmp_path, f"SIZE = 3; from megatape.config import Config\n{CLASS}")
    with pytest.raises(UserError, match="line 2: write one statement a line"):
        assert file.text


@pytest.mark.usefixtures("own_modules")
def test_a_file_beside_it_is_checked_for_the_names_that_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("from megatape.config import Config\nSIZE = 3\nFIELDS = len(Config.model_fields)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, wanted in (("good", "SIZE"), ("bad", "FIELDS")):
        (package / f"{name}.py").write_text(f"from .parts import {wanted}\nclass Own:\n    size = {wanted}\n")
    files = collect_files({"own_package.good": {"Own"}}, {})
    assert files == {
        "good.py": "from .parts import SIZE\nclass Own:\n    size = SIZE\n",
        "parts.py": "SIZE = 3\n",
    }
    with pytest.raises(UserError, match="parts.py, line 1: megatape.config.Config .* and FIELDS needs it"):
        collect_files({"own_package.bad": {"Own"}}, {})
    assert file_of("own_package.good") == package / "good.py"
