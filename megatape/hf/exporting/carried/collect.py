"""Collects the files that an export carries."""

from pathlib import Path

from megatape.errors import UserError
from megatape.hf.exporting.carried.carried_file import CarriedFile, file_of


def carry(wanted: dict[str, set[str]], written: dict[str, Path]) -> dict[str, str]:
    """Collect the files that an export must carry.

    Args:
        wanted: Names of modules -> names that the export uses from each.
        written: Names of files that the export writes itself -> files of this package that they replace.

    Returns:
        Names of files -> their code.

    Raises:
        UserError: Two files have the same name, or one needs what exported models do not have.
    """
    origin = next(iter(wanted))
    files: dict[str, CarriedFile] = {}
    paths = dict(written)
    queue = list(wanted.items())
    while queue:
        module, names = queue.pop()
        path = file_of(module)
        if paths.setdefault(path.name, path) != path:
            raise UserError(f"{file_of(origin)}: exports have another {path.name}: rename the file")
        if path.name in written:
            continue
        if path.name not in files:
            files[path.name] = CarriedFile(module)
            queue += files[path.name].imports.items()
        files[path.name].check(names)
    return {name: file.text for name, file in files.items()}
