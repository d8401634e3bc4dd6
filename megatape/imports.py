"""The user's own modules, which add entries to the tables of megatape/registry.py when imported.

Only the option --import imports a module. Configurations, checkpoints and exports record which modules were used, but never
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

# Imported modules: name -> spelling on the command line.
_spelling_by_name: dict[str, str] = {}


def import_given(text: str) -> None:
    """Import a module.

    Args:
        text: Module name, or path of a .py file, whose name without .py becomes the module's.

    Raises:
        UserError: The module or file does not exist, or a file has the name of another module.
    """
    name = _module_name(check_word(text))
    if text.endswith(".py"):
        _import_file(name, Path(text))
    else:
        _import_module(name, text)
    _spelling_by_name[name] = text


def import_leading(words: list[str]) -> list[str]:
    """Import the modules at the beginning of a child's command line (see `arguments`), and return the remaining words."""
    while words[:1] == [OPTION]:
        import_given(words[1])
        words = words[2:]
    return words


def given() -> tuple[str, ...]:
    """Return the imported modules as spelled on the command line."""
    return tuple(_spelling_by_name.values())


def arguments() -> list[str]:
    """Return the command-line words for importing the same modules in another process."""
    words = []
    for text in given():
        words += [OPTION, text]
    return words


def files() -> list[Path]:
    """Return the files of modules imported by path."""
    return [Path(text) for text in given() if text.endswith(".py")]


def search_folders() -> list[str]:
    """Return the folders outside this environment where Python finds the modules imported by name."""
    packages = {name.partition(".")[0] for name, text in _spelling_by_name.items() if name == text}
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
    """Return the modules recorded in a file but not imported.

    A value that is not a list of names counts as an empty list, because checking the file reports it.
    """
    if not isinstance(recorded, list | tuple):
        return []
    return [name for name in recorded if isinstance(name, str) and _module_name(name) not in _spelling_by_name]


def options_for(modules: Iterable[str]) -> str:
    """Return the options for importing modules, quoted for a shell."""
    options = [f"{OPTION} {shlex.quote(check_line(name))}" for name in modules]
    return " ".join(options)


def check_given(recorded: object, origin: object) -> None:
    """Check that the modules recorded in a file were imported.

    Args:
        recorded: Recorded modules. A value that is not a list of names passes, because checking the file reports it.
        origin: File, for the message.

    Raises:
        UserError: A module was not imported.
    """
    missing = not_given(recorded)
    if missing:
        raise UserError(
            f"{origin} was made with modules of a user's own, and only those on the command line are imported: add "
            f"{options_for(missing)}"
        )


def file_hashes() -> dict[str, str]:
    """Return the sha256 of each imported module's file, by module name."""
    hashes = {}
    for name in _spelling_by_name:
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
        raise UserError(f"{OPTION} {path}: {name} is not a module name: rename the file")
    if Path(spec.origin or "").resolve() != path:
        raise UserError(f"{OPTION} {path}: {name} is another module: rename the file")
    import_module(name)
