"""Fills the templates of batch scripts in this folder."""

import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from megatape import imports
from megatape.errors import UserError, flag
from megatape.errors.text_checks import check_line
from megatape.run_folder import RunFolder

# Folder in a snapshot for the files given with --import.
IMPORTS = "imports"

# Value of an sbatch option. None omits the option, so that Slurm's default applies.
Directive = str | int | Path | None


def fill_script(template: str, snapshot: Path, directives: Mapping[str, Directive], **values: object) -> str:
    """Return a batch script that runs the code in a snapshot, with the modules given with --import.

    Args:
        template: File name in this folder.
        snapshot: Snapshot folder.
        directives: sbatch options by name, in addition to those of every script.
        values: Further values used by the template.

    Raises:
        UserError: A value contains a line break.
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
    """Return a value as a single word of a batch script.

    Raises:
        UserError: The value contains a line break.
    """
    return shlex.quote(check_line(str(value)))


def log_prefix(directory: Path, name: str) -> Path:
    """Return the common prefix of a job's log paths.

    Args:
        directory: Run directory.
        name: Job name.

    Raises:
        UserError: Slurm would write to other files.
    """
    prefix = RunFolder(directory.absolute()).job_logs / name
    if not name or "/" in name or "%" in str(prefix):
        raise UserError(
            f"logs would be {prefix}-*, but Slurm creates no folders and replaces %: choose another {flag('name')} or folder"
        )
    return prefix
