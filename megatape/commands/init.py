"""Copies an example configuration, or lists all of them."""

import shlex
from pathlib import Path

from megatape.errors import UserError, path_errors
from megatape.errors.suggestions import choose_one
from megatape.utils.files.atomic import check_absent, write_atomically
from megatape.utils.files.project_files import project_file
from megatape.utils.values.options import CommandOptions, option

EXAMPLE = "megatape init tape_tiny --output tape.json"


class Options(CommandOptions):
    """An example configuration.

    Attributes:
        name: example configuration, such as tape_155m or finetune/scrolls_155m (default: list all)
        output: file to write (default: the example's file name, in the current folder)
    """

    name: str | None = option(None, positional=True, nargs="?", metavar="NAME")
    output: Path | None = option(None, metavar="FILE")


@path_errors()
def run(options: Options) -> None:
    """Write the file and print a command to run next, or list the names."""
    folder = project_file("configs")
    names: list[str] = []
    for path in folder.rglob("*.json"):
        names.append(str(path.relative_to(folder).with_suffix("")))
    names.sort()
    if options.name is None:
        print(*names, sep="\n")
        return
    if options.name not in names:
        raise UserError(f"no configuration {options.name}: {choose_one(options.name, names)}")
    source = folder / f"{options.name}.json"
    output = options.output or Path(source.name)
    check_absent(output)
    write_atomically(output, source.read_bytes())
    quoted = shlex.quote(str(output))
    print(f"wrote {output}; now, for example: megatape plan --config {quoted}")
