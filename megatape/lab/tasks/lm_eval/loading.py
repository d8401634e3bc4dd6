"""Loads lm-eval's tasks with their data sets. lm-eval is imported inside functions, because it may not be installed."""

import logging
import random
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.errors import UserError
from megatape.lab.tasks.lm_eval.names import unknown_task
from megatape.utils.replaced_attribute import replaced_attribute

if TYPE_CHECKING:
    from megatape.lab.tasks.lm_eval.lengths import Length

# lm-eval's own seed for the examples in prompts.
SEED = 1234


@dataclass(frozen=True)
class Selection:
    """Tasks of lm-eval to load.

    Attributes:
        names: Names of tasks, groups or tags.
        num_fewshot: Number of examples before each question, None for that of each task.
        max_examples: Number of texts to write at each length, None for lm-eval's own.
        data_root: Folder with copies of data sets, None for those of the hub.
        include: Folder with the user's own task files.
        lengths: Text lengths. Tasks of RULER and BABILong are loaded once for each.
    """

    names: tuple[str, ...]
    num_fewshot: int | None
    max_examples: int | None
    data_root: Path | None
    include: Path | None
    lengths: "tuple[Length, ...]"


@dataclass(frozen=True)
class LoadedTasks:
    """Tasks and groups of lm-eval, with their data sets.

    Attributes:
        tasks: Tasks by name.
        groups: Groups by name.
    """

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
    # lm-eval warns about settings that its own tasks leave to defaults.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    random.seed(SEED)
    if selection.lengths:
        from megatape.lab.tasks.lm_eval.lengths import forget_texts

        forget_texts()
    loaded = LoadedTasks({}, {})
    with ExitStack() as stack:
        if selection.data_root is not None:
            stack.enter_context(_offline(selection.data_root))
        for length in selection.lengths or (None,):
            for name in selection.names:
                found = _load_one(manager, name, selection, length)
                loaded.tasks.update({task.task_name: task for task in found["tasks"].values()})
                loaded.groups.update({group.name: group for group in found["groups"].values()})
    for task in loaded.tasks.values():
        _set_fewshot(task, selection.num_fewshot)
    return loaded


def _set_fewshot(task: Any, num_fewshot: int | None) -> None:
    """Set the number of examples before each question of a task, None for the task's own."""
    own = task.get_config("num_fewshot")
    # With 0, the task must not have examples.
    if num_fewshot is not None and own != 0:
        task.set_config(key="num_fewshot", value=num_fewshot)
    elif own is None:
        task.set_config(key="num_fewshot", value=0)


@lru_cache(maxsize=2)
def task_manager(include: Path | None, stock: bool) -> Any:
    """Return the manager of tasks.

    Args:
        include: Folder with the user's own task files.
        stock: Whether to include lm-eval's tasks. Reading them takes ten seconds.
    """
    from lm_eval.tasks import TaskManager

    include_path = None
    if include is not None:
        include_path = str(include.resolve())
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
            where = f" in --data-root {selection.data_root}"
        raise UserError(f"tasks: lm-eval cannot load {name}{where}: {reason_of(error)}") from error


@contextmanager
def _offline(folder: Path) -> Iterator[None]:
    """Let `datasets` find data sets in this folder only."""
    import datasets
    from huggingface_hub import constants

    with ExitStack() as stack:
        stack.enter_context(chdir(folder))
        stack.enter_context(replaced_attribute(datasets.config, "HF_HUB_OFFLINE", True))
        stack.enter_context(replaced_attribute(constants, "HF_HUB_OFFLINE", True))
        yield


def seed_prompts(task: Any) -> None:
    """Seed the task's next prompts like lm-eval."""
    random.seed(SEED)
    task.set_fewshot_seed(SEED)


def reason_of(error: Exception) -> str:
    """Return the first line with words in an error of lm-eval, or the error's kind if it has none."""
    for line in str(error).splitlines():
        if line.strip(" *"):
            return line.strip()
    return type(error).__name__
