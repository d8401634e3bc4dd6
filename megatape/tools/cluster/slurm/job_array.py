"""Runs of a Slurm job: a single run, or one per task of a job array."""

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
        directory: Run directory, or parent folder of an array's run directories.
        is_array: Whether each configuration is a task of a job array. Otherwise there is a single configuration.
    """

    configs: dict[str, Config]
    directory: Path
    is_array: bool


@path_errors()
def plan_array(path: str, overrides: Sequence[str], study: Path | None) -> JobArray:
    """Return the run of a configuration, or one run per line of a file with overrides.

    Args:
        path: Configuration file.
        overrides: Overrides `section.key=value` for all runs.
        study: File with overrides, one line per run. The run directory of run i is run.directory/i.

    Raises:
        UserError: A configuration or a line is invalid.
        FileNotFoundError: A file is missing.
    """
    base = load_config(path, overrides)
    directory = Path(base.run.directory)
    if study is None:
        return JobArray({"config.json": base}, directory, is_array=False)

    configs = {}
    for number, run_overrides in enumerate(_read_overrides(study)):
        if any(override.startswith("run.directory=") for override in run_overrides):
            raise UserError(f"{study}, run {number}: run.directory is always {directory}/{number}: remove it")
        run_directory = f"run.directory={directory / str(number)}"
        with content_errors(f"{study}, run {number}", "correct its line", UserError):
            config = load_config(path, [*overrides, *run_overrides, run_directory])
        configs[f"config-{number}.json"] = config
    if not configs:
        raise UserError(f"{study}: no runs: write a line of section.key=value overrides for each run")
    return JobArray(configs, directory, is_array=True)


def _read_overrides(file: Path) -> list[list[str]]:
    """Return the overrides on each line of a file, without empty lines and comments."""
    lines = []
    with content_errors(str(file), "write section.key=value overrides in UTF-8, with closed quotes"):
        for text in file.read_text(encoding="utf-8").splitlines():
            # shlex would start a comment at any #, even inside a word.
            without_comment = re.sub(r"(^|\s)#.*", "", text)
            words = shlex.split(without_comment)
            if words:
                lines.append(words)
    return lines
