"""Batch scripts from templates of this folder."""

import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from megatape import imports
from megatape.errors import UserError
from megatape.errors.text_checks import check_line
from megatape.run_folder import RunFolder

# Folder of a snapshot, for files given with --import.
IMPORTS = "imports"

# Value of an option of sbatch. None leaves the option to Slurm.
Directive = str | int | Path | None


def fill_script(template: str, snapshot: Path, directives: Mapping[str, Directive], **values: object) -> str:
    """Return a batch script that runs the code of a snapshot, with the modules of --import.

    Args:
        template: File name in this folder.
        snapshot: Folder of the snapshot.
        directives: Options of sbatch by name, in addition to those of every script.
        values: Further values that the template names.

    Raises:
        UserError: A value does not stay within its line.
    """
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["quoted"] = quoted
    folder = snapshot.absolute()
    imported = ""
    for text in imports.given():
        module: str | Path = text
        if text.endswith(".py"):
            module = folder / IMPORTS / Path(text).name
        imported += f"{imports.OPTION} {quoted(module)} "
    search_path = "".join(f":{quoted(path)}" for path in imports.search_folders())
    text = (files("megatape.tools.cluster.slurm") / template).read_text(encoding="utf-8")
    shared: dict[str, Directive] = {"chdir": Path.cwd(), "open-mode": "append"}
    return environment.from_string(text).render(
        snapshot=folder,
        directives={**directives, **shared},
        imported=imported,
        search_path=search_path,
        **values,
    )


def quoted(value: object) -> str:
    """Return a value as one word of a batch script.

    Raises:
        UserError: The value does not stay within its line.
    """
    return shlex.quote(check_line(str(value)))


def log_prefix(directory: Path, name: str) -> Path:
    """Return the beginning of the paths of a job's logs.

    Args:
        directory: Folder of the run.
        name: Name of the job.

    Raises:
        UserError: Slurm would write to other files.
    """
    prefix = RunFolder(directory.absolute()).job_logs / name
    if not name or "/" in name or "%" in str(prefix):
        raise UserError(
            f"logs would be {prefix}-*, but Slurm creates no folders and replaces %: choose another `name` or folder"
        )
    return prefix
