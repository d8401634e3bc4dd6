"""A user's own modules, given by --import.

They add entries to the tables of megatape/registry.py when they are imported.
Only --import imports one. Configurations, checkpoints and exports record which ones were given, and never have them imported.
"""

import hashlib
import shlex
import sys
from collections.abc import Iterable
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path

from megatape.errors import UserError, check_line, check_word

OPTION = "--import"
_given: dict[str, str] = {}  # name of a module -> as the command line has it


def import_given(text: str) -> None:
    """Import a module, once.

    Args:
        text: Name of a module that Python finds, or path of a .py file, whose name without .py becomes that of the module.

    Raises:
        UserError: There is no such module or file, or a file has the name of another module.
    """
    name = _module_name(check_word(text))
    if text.endswith(".py"):
        _import_file(name, Path(text))
    else:
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a package that the module needs
            raise UserError(
                f"{OPTION} {text}: there is no module {error.name}: correct the name, give the path of a .py file, or add the "
                "module's folder to PYTHONPATH"
            ) from None
    _given[name] = text


def import_leading(words: list[str]) -> list[str]:
    """Import what `arguments` of another process names at the beginning of its words. Returns the other words."""
    while words[:1] == [OPTION]:
        import_given(words[1])
        words = words[2:]
    return words


def given() -> tuple[str, ...]:
    """What was imported, as the command line has it."""
    return tuple(_given.values())


def arguments() -> list[str]:
    """Words by which another command imports the same."""
    return [word for text in given() for word in (OPTION, text)]


def files() -> list[Path]:
    """Those that were given by their paths."""
    return [Path(text) for text in given() if text.endswith(".py")]


def search_folders() -> list[str]:
    """Folders beside this environment in which Python finds the modules that were given by name."""
    tops = {name.partition(".")[0] for name, text in _given.items() if name == text}
    specs = [spec for top in sorted(tops) if (spec := sys.modules[top].__spec__)]
    places = [Path([*(spec.submodule_search_locations or ()), spec.origin or ""][0]).parent for spec in specs]
    return [str(place) for place in dict.fromkeys(places) if not place.is_relative_to(sys.prefix)]


def not_given(recorded: object) -> list[str]:
    """Return the modules recorded in a file that were not imported, as the file spells them.

    A value that is not a list of names counts as an empty one: the file's own check reports it.
    """
    names = [name for name in recorded if isinstance(name, str)] if isinstance(recorded, list | tuple) else []
    return [name for name in names if _module_name(name) not in _given]


def options_for(modules: Iterable[str]) -> str:
    """Return the options that import modules, quoted for a shell."""
    return " ".join(f"{OPTION} {shlex.quote(check_line(name))}" for name in modules)


def check_given(recorded: object, origin: object) -> None:
    """Check that a file's modules were imported. A value that is no list of names is left to the file's own check.

    Raises:
        UserError: The file `origin` was made with modules that the command was not given.
    """
    if missing := not_given(recorded):
        raise UserError(
            f"{origin} was made with modules of a user's own, and only those on the command line are imported: add "
            f"{options_for(missing)}"
        )


def file_hashes() -> dict[str, str]:
    """sha256 of the file of each module, by the module's name."""
    files = {name: getattr(sys.modules[name], "__file__", None) for name in _given}
    return {name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for name, file in files.items() if file}


def _module_name(text: str) -> str:
    return Path(text).stem if text.endswith(".py") else text


def _import_file(name: str, path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{OPTION} {path}: no such file")
    path = path.resolve()
    sys.path.append(str(path.parent))  # so that processes of this one find it, and it finds its neighbours
    invalidate_caches()  # of the folder, where the file may be new
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or Path(spec.origin or "").resolve() != path:
        raise UserError(f"{OPTION} {path}: {name} is {'another module' if spec else 'no name of a module'}: rename the file")
    import_module(name)
