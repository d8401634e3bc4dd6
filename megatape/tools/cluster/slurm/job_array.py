"""Runs of a Slurm job: one configuration, or one per task of a job array."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatape.config import Config, load_config
from megatape.errors import UserError, content_errors, path_errors


@dataclass(frozen=True)
class JobArray:
    """Runs of a job.

    Attributes:
        configs: Configurations by file name.
        directory: Folder of the run, or of the runs of an array.
        is_array: Whether each configuration is a task of a job array. Otherwise there is a single configuration.
    """

    configs: dict[str, Config]
    directory: Path
    is_array: bool


@path_errors()
def plan_array(path: str, overrides: Sequence[str], changes: Path | None) -> JobArray:
    """Return the run of a configuration, or one run per line of a file with changes.

    Args:
        path: File of the configuration.
        overrides: Changes `section.key=value` of all runs.
        changes: File with a line of changes per run. Run i writes to run.directory/i.

    Raises:
        UserError: A configuration or a line is invalid.
        FileNotFoundError: A file is missing.
    """
    base = load_config(path, overrides)
    directory = Path(base.run.directory)
    if changes is None:
        return JobArray({"config.json": base}, directory, is_array=False)

    configs = {}
    for number, changes_of_run in enumerate(_read_changes(changes)):
        if any(change.startswith("run.directory=") for change in changes_of_run):
            raise UserError(f"{changes}, run {number}: run.directory is always {directory}/{number}: remove it")
        own_directory = f"run.directory={directory / str(number)}"
        with content_errors(f"{changes}, run {number}", "correct its line", UserError):
            config = load_config(path, [*overrides, *changes_of_run, own_directory])
        configs[f"config-{number}.json"] = config
    if not configs:
        raise UserError(f"{changes}: no runs: write a line of section.key=value overrides for each run")
    return JobArray(configs, directory, is_array=True)


def _read_changes(file: Path) -> list[list[str]]:
    """Return the changes on each line of a file, without empty lines and comments."""
    lines = []
    with content_errors(str(file), "write section.key=value overrides in UTF-8, with closed quotes"):
        for text in file.read_text(encoding="utf-8").splitlines():
            # shlex would begin a comment at any #, also inside a word.
            without_comment = re.sub(r"(^|\s)#.*", "", text)
            words = shlex.split(without_comment)
            if words:
                lines.append(words)
    return lines
