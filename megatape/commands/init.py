"""megatape init: `megatape init tape_tiny --output tape.json`."""

import shlex
from pathlib import Path

from megatape.errors import UserError, choose_one, path_errors
from megatape.utils.files import check_absent, write_atomically
from megatape.utils.options import CommandOptions, option
from megatape.utils.software import project_file


class Options(CommandOptions):
    """A configuration of this project.

    Attributes:
        name: name in configs/, such as tape_155m or finetune/scrolls_155m (default: list all)
        output: file to write (default: the name, in this folder)
    """

    name: str | None = option(None, positional=True, nargs="?", metavar="NAME")
    output: Path | None = option(None, metavar="FILE")


@path_errors()
def run(options: Options) -> None:
    """Write the file and print what to type next, or list the names."""
    folder = project_file("configs")
    names = sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.json"))
    if options.name is None:
        print(*names, sep="\n")
        return
    if options.name not in names:
        raise UserError(f"no configuration {options.name}: {choose_one(options.name, names)}")
    output = options.output or Path(f"{Path(options.name).name}.json")
    check_absent(output)
    write_atomically(output, (folder / f"{options.name}.json").read_bytes())
    print(f"wrote {output}; now, for example: megatape plan --config {shlex.quote(str(output))}")
