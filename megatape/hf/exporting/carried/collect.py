"""Collects the files that an export carries."""

from pathlib import Path

from megatape.errors import UserError
from megatape.hf.exporting.carried.carried_file import CarriedFile, file_of


def collect_files(modules: dict[str, set[str]], own_files: dict[str, Path]) -> dict[str, str]:
    """Collect the code of all files that an export must carry.

    Args:
        modules: Module -> names that the export uses from it.
        own_files: File name that the export writes itself -> file in this package that it replaces.

    Returns:
        File name -> code.

    Raises:
        UserError: Two files have the same name, or a file needs something that exported models do not have.
    """
    origin = next(iter(modules))
    files: dict[str, CarriedFile] = {}
    paths = dict(own_files)
    queue = list(modules.items())
    while queue:
        module, names = queue.pop()
        path = file_of(module)
        if paths.setdefault(path.name, path) != path:
            raise UserError(f"{file_of(origin)}: exports have another {path.name}: rename the file")
        if path.name in own_files:
            continue
        if path.name not in files:
            files[path.name] = CarriedFile(module)
            queue += files[path.name].imports.items()
        files[path.name].check(names)
    return {name: file.text for name, file in files.items()}
