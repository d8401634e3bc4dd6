"""Loads lm-eval's tasks with their data sets."""

import logging
import random
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.errors import UserError, flag
from megatape.lab.tasks.lm_eval.names import unknown_task
from megatape.lab.tasks.lm_eval.replacements import data_sets_in

if TYPE_CHECKING:
    from megatape.lab.tasks.lm_eval.lengths import Length

# lm-eval's own seed for drawing few-shot examples.
SEED = 1234


@dataclass(frozen=True)
class Selection:
    """Tasks of lm-eval to load.

    Attributes:
        names: Task, group or tag names.
        num_fewshot: Number of examples before each question, None for the task's own.
        max_examples: Number of texts to generate at each length, None for lm-eval's own.
        data_root: Folder with copies of data sets, None for using the hub.
        include: Folder with the user's own task files.
        lengths: Text lengths. Every task is loaded once per length.
    """

    names: tuple[str, ...]
    num_fewshot: int | None
    max_examples: int | None
    data_root: Path | None
    include: Path | None
    lengths: "tuple[Length, ...]"


@dataclass(frozen=True)
class LoadedTasks:
    """Tasks and groups of lm-eval by name, with their data sets."""

    tasks: dict[str, Any]
    groups: dict[str, Any]


@lru_cache(maxsize=1)
def load_tasks(selection: Selection) -> LoadedTasks:
    """Load tasks and groups with their data sets.

    Raises:
        UserError: lm-eval does not have a task, or cannot load it.
    """
    import datasets

    manager = task_manager(selection.include, stock=False)
    if any(name not in manager.all_tasks for name in selection.names):
        manager = task_manager(selection.include, stock=True)
    for name in selection.names:
        if name not in manager.all_tasks:
            raise unknown_task(name, manager.all_tasks)
    datasets.disable_progress_bars()
    # lm-eval warns about defaults that its own tasks rely on.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    random.seed(SEED)
    if selection.lengths:
        from megatape.lab.tasks.lm_eval.lengths import forget_texts

        forget_texts()
    loaded = LoadedTasks({}, {})
    with ExitStack() as stack:
        if selection.data_root is not None:
            stack.enter_context(data_sets_in(selection.data_root))
        for length in selection.lengths or (None,):
            for name in selection.names:
                entries = _load_one(manager, name, selection, length)
                loaded.tasks.update({task.task_name: task for task in entries["tasks"].values()})
                loaded.groups.update({group.name: group for group in entries["groups"].values()})
    for task in loaded.tasks.values():
        _set_fewshot(task, selection.num_fewshot)
    return loaded


def _set_fewshot(task: Any, num_fewshot: int | None) -> None:
    """Set the number of examples before each question, None for the task's own."""
    default = task.get_config("num_fewshot")
    # A default of 0 means that the task does not allow examples.
    if num_fewshot is not None and default != 0:
        task.set_config(key="num_fewshot", value=num_fewshot)
    elif default is None:
        task.set_config(key="num_fewshot", value=0)


@lru_cache(maxsize=2)
def task_manager(include: Path | None, stock: bool) -> Any:
    """Return lm-eval's TaskManager.

    Args:
        include: Folder with the user's own task files.
        stock: Whether to include lm-eval's tasks. Reading them takes ten seconds.
    """
    from lm_eval.tasks import TaskManager

    include_path = None if include is None else str(include.resolve())
    return TaskManager(include_path=include_path, include_defaults=stock)


def _load_one(manager: Any, name: str, selection: Selection, length: "Length | None") -> Any:
    offline = selection.data_root is not None
    try:
        if length is None:
            return manager.load([name])
        return length.load(manager, name, selection.max_examples, offline)
    except UserError:
        raise
    except Exception as error:
        where = ""
        if offline:
            where = f" in {flag('data_root')} {selection.data_root}"
        raise UserError(f"{flag('tasks')}: lm-eval cannot load {name}{where}: {reason_of(error)}") from error


def seed_prompts(task: Any) -> None:
    """Seed the task's next prompts as lm-eval does."""
    random.seed(SEED)
    task.set_fewshot_seed(SEED)


def reason_of(error: Exception) -> str:
    """Return the first non-blank line of an error's message, or the error's type if there is none."""
    for line in str(error).splitlines():
        if line.strip(" *"):
            return line.strip()
    return type(error).__name__
