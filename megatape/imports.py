"""The user's own modules, which add entries to the tables of megatape/registry.py when they are imported.

Only the option --import imports a module. Configurations, checkpoints and exports record which modules were given, and never
import them.
"""

import hashlib
import shlex
import sys
from collections.abc import Iterable
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from megatape.errors import UserError
from megatape.errors.text_checks import check_line, check_word

OPTION = "--import"

# Imported modules: name -> the same module as the command line spells it.
_given: dict[str, str] = {}


def import_given(text: str) -> None:
    """Import a module, once.

    Args:
        text: Name of a module that Python finds, or path of a .py file, whose name without .py becomes that of the module.

    Raises:
        UserError: The module or file does not exist, or a file has the name of another module.
    """
    name = _module_name(check_word(text))
    if text.endswith(".py"):
        _import_file(name, Path(text))
    else:
        _import_module(name, text)
    _given[name] = text


def import_leading(words: list[str]) -> list[str]:
    """Import the modules that `arguments` of another process names at the beginning of its words.

    Args:
        words: Words of the command line.

    Returns:
        The remaining words.
    """
    while words[:1] == [OPTION]:
        import_given(words[1])
        words = words[2:]
    return words


def given() -> tuple[str, ...]:
    """Return the imported modules, as the command line spells them."""
    return tuple(_given.values())


def arguments() -> list[str]:
    """Return the words by which another command imports the same modules."""
    words = []
    for text in given():
        words += [OPTION, text]
    return words


def files() -> list[Path]:
    """Return the files of the modules that were given by path."""
    return [Path(text) for text in given() if text.endswith(".py")]


def search_folders() -> list[str]:
    """Return the folders outside of this environment in which Python finds the modules that were given by name."""
    packages = {name.partition(".")[0] for name, text in _given.items() if name == text}
    folders: list[str] = []
    for package in sorted(packages):
        spec = sys.modules[package].__spec__
        if spec is None:
            continue
        locations = [*(spec.submodule_search_locations or ()), spec.origin or ""]
        folder = Path(locations[0]).parent
        if not folder.is_relative_to(sys.prefix) and str(folder) not in folders:
            folders.append(str(folder))
    return folders


def not_given(recorded: object) -> list[str]:
    """Return the modules recorded in a file that were not imported, as the file spells them.

    A value that is not a list of names counts as an empty list: the file's own check reports it.
    """
    if not isinstance(recorded, list | tuple):
        return []
    return [name for name in recorded if isinstance(name, str) and _module_name(name) not in _given]


def options_for(modules: Iterable[str]) -> str:
    """Return the options that import modules, quoted for a shell."""
    options = [f"{OPTION} {shlex.quote(check_line(name))}" for name in modules]
    return " ".join(options)


def check_given(recorded: object, origin: object) -> None:
    """Check that the modules recorded in a file were imported.

    Args:
        recorded: The modules. A value that is not a list of names is left to the file's own check.
        origin: The file.

    Raises:
        UserError: The file was made with modules that the command was not given.
    """
    missing = not_given(recorded)
    if missing:
        raise UserError(
            f"{origin} was made with modules of a user's own, and only those on the command line are imported: add "
            f"{options_for(missing)}"
        )


def file_hashes() -> dict[str, str]:
    """Return the sha256 of the file of each imported module, by the module's name."""
    hashes = {}
    for name in _given:
        file = getattr(sys.modules[name], "__file__", None)
        if file:
            hashes[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return hashes


def _module_name(text: str) -> str:
    if text.endswith(".py"):
        return Path(text).stem
    return text


def _import_module(name: str, text: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        is_missing = error.name is not None and f"{name}.".startswith(f"{error.name}.")
        if not is_missing:
            raise  # The module exists, but needs a package that is missing.
        raise UserError(
            f"{OPTION} {text}: there is no module {error.name}: correct the name, give the path of a .py file, or add the "
            "module's folder to PYTHONPATH"
        ) from None


def _import_file(name: str, path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{OPTION} {path}: no such file")
    path = path.resolve()
    # Child processes must find the module, and the module its neighbors.
    sys.path.append(str(path.parent))
    invalidate_caches()  # The file may be new in its folder.
    spec = None
    if name.isidentifier():
        spec = find_spec(name)
    if spec is None:
        raise UserError(f"{OPTION} {path}: {name} is no name of a module: rename the file")
    if Path(spec.origin or "").resolve() != path:
        raise UserError(f"{OPTION} {path}: {name} is another module: rename the file")
    import_module(name)
