"""Rules for starting a run from step 0: its run directory must be new, or must never have had a checkpoint."""

from pathlib import Path

from megatape.errors import UserError, flag
from megatape.run_folder import CORRUPTED, RunFolder, read_metrics
from megatape.utils.files.atomic import rename
from megatape.utils.files.files import read_regular
from megatape.utils.files.json_files import read_json
from megatape.utils.files.json_lines import read_lines
from megatape.utils.text.units import plural

# Suffix of corrupted checkpoints in earlier versions.
EARLIER_CORRUPTED = ".damaged"


def check_new(folder: RunFolder) -> None:
    """Check that no run has trained in a run directory, so that a new one may start from step 0.

    Raises:
        UserError: A run has trained in it.
    """
    if folder.list_checkpoints():
        raise UserError(
            f"run.directory {folder.directory} already holds checkpoints: add {flag('resume')} auto to continue, or choose "
            "another folder"
        )
    _check_nothing_lost(folder)
    num_steps = len(read_metrics(folder.metrics))
    if num_steps:
        steps = plural(num_steps, "step")
        raise UserError(
            f"run.directory {folder.directory} already holds a run: {folder.metrics.name} records {steps}. Add "
            f"{flag('resume')} auto to continue it, choose another folder, or remove {folder.metrics}"
        )


def check_restart(folder: RunFolder) -> int:
    """Check that a run without checkpoints has never saved one, so that it may restart from step 0.

    Returns:
        Last step in metrics.jsonl, 0 without any.

    Raises:
        UserError: There may have been checkpoints.
    """
    _check_nothing_lost(folder)
    last_step = max(read_metrics(folder.metrics), default=0)
    first_save = _first_save(folder)
    if last_step < first_save or not last_step:
        return last_step

    # A partial folder for that step shows that the process ended during the first save.
    has_partial = any(folder.checkpoints.glob(f"{folder.checkpoint(first_save).name}.*tmp"))
    ended_in_first_save = has_partial and last_step == first_save
    if not ended_in_first_save and not records_no_save(folder):
        steps = plural(last_step, "step")
        raise UserError(
            f"run.directory {folder.directory} has no checkpoint, but {folder.metrics.name} records {steps} and "
            f"{folder.config.name} asks for the first checkpoint at step {first_save}: starting from step 0 could repeat "
            f"what is lost. Restore or mount {folder.checkpoints}, choose another run.directory, or remove {folder.metrics} "
            "to start again"
        )
    return last_step


def set_metrics_aside(folder: RunFolder) -> Path:
    """Rename metrics.jsonl before restarting from step 0. Returns the new path."""
    number = 1
    aside = folder.directory / f"metrics-{number}.jsonl"
    while aside.exists():
        number += 1
        aside = folder.directory / f"metrics-{number}.jsonl"
    rename(folder.metrics, aside)
    return aside


def records_no_save(folder: RunFolder) -> bool:
    """Whether events.jsonl shows that a run started and never completed a checkpoint.

    Such a run was killed between a step and its save, or while writing its first save in the background.
    """
    events = [event.get("event") for _, event in read_lines(folder.events)]
    return "started" in events and "checkpoint" not in events


def _check_nothing_lost(folder: RunFolder) -> None:
    """Raise UserError if there are traces of missing checkpoints."""
    advice = f"choose another run.directory, or remove {folder.directory} to start again"
    aside = list(folder.checkpoints.glob(f"step-*{CORRUPTED}"))
    aside += folder.checkpoints.glob(f"step-*{EARLIER_CORRUPTED}")
    if aside:
        raise UserError(
            f"run.directory {folder.directory} holds no checkpoint but corrupted ones that were set aside, such as "
            f"{aside[0].name}: repair one and remove its suffix, {advice}"
        )
    if folder.latest.exists():
        last = read_regular(folder.latest).decode(errors="replace").strip()
        raise UserError(
            f"run.directory {folder.directory} holds no checkpoint, but the run that trained here last had {last}: restore "
            f"or mount it and give {flag('resume')} {last}, {advice}"
        )
    if folder.config.exists() and not folder.metrics.exists():
        raise UserError(
            f"run.directory {folder.directory} holds {folder.config.name} of an earlier run, but neither its checkpoints nor "
            f"its {folder.metrics.name}: restore or mount them, {advice}"
        )


def _first_save(folder: RunFolder) -> int:
    """Return the step of the first save according to config.json, 0 if it cannot be read."""
    try:
        config = read_json(folder.config)
        interval = int(config["checkpoint"]["interval"])
        return min(interval, int(config["training"]["steps"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0
