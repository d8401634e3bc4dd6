"""megatape evaluate: `megatape evaluate perplexity,passkey exported --data data/c4 --lengths 1024,2048 --output evaluated`."""

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, create_model

from megatape.commands.arguments import add_options
from megatape.commands.deepspeed_setup import prepare_deepspeed
from megatape.commands.options import ImportOptions, ModelOptions, describe
from megatape.commands.parser import Parser
from megatape.commands.running import run_command
from megatape.errors import UserError, choose_one
from megatape.imports import OPTION
from megatape.registry import TASKS
from megatape.utils.options import Count, Listed, Paragraphs, option, split_docstring


def _check_tasks(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in TASKS:
            raise UserError(
                f"{name!r} is not a task: {choose_one(name, TASKS)}; to use a task of your own, give its file with "
                f"{OPTION} before the tasks"
            )
        if names.count(name) > 1:
            raise UserError(f"{name!r} is given twice")
    return names


class Options(ImportOptions):
    """The tasks, on which the other options depend.

    Attributes:
        rest: models and options of the tasks
    """

    tasks: Annotated[Listed[str], AfterValidator(_check_tasks)] = option(
        description=f"tasks to evaluate; add --help for their options. {describe(TASKS)}",
        positional=True,
        metavar="TASK[,TASK]",
        completions=tuple(TASKS),
    )
    rest: tuple[str, ...] = option(
        (), positional=True, nargs=argparse.REMAINDER, metavar="MODEL_DIR [MODEL_DIR ...] --output FOLDER [options]"
    )


class EvaluationOptions(ModelOptions):
    """Models, and how they are run: options beside those of the tasks.

    Attributes:
        models: checkpoint or exported model
        output: folder for the results; a stopped evaluation resumes in the same
        training_code: run the model by the code that trains it, without an export and without a
            cache: slow where texts are generated
        tp: processes that divide one model, which the training code then runs
    """

    resumable = True

    models: tuple[Path, ...] = option(positional=True, metavar="MODEL_DIR")
    output: Path = option(metavar="FOLDER")
    training_code: bool = False
    tp: Count = option(1, metavar="T")


def options_of(tasks: Sequence[str]) -> type[EvaluationOptions]:
    """The options that follow the tasks. Those of the same name are one for all tasks, and one more for each of them alone."""
    declared: dict[str, Any] = {}
    owners: dict[str, list[str]] = {}
    descriptions: dict[str, str] = {}
    for name in tasks:
        task = TASKS[name].load()
        descriptions |= split_docstring(task)[1]
        hints = get_type_hints(task, include_extras=True)
        for field in fields(task):
            declared[field.name] = (hints[field.name], ... if field.default is MISSING else field.default)
            owners.setdefault(field.name, []).append(name)
    for shared, names in owners.items():
        for name in names if len(names) > 1 else ():
            alone = option(description=f"`{shared}` of {name} alone", metavar=shared.upper())
            declared[_alone(name, shared)] = (Annotated[declared[shared][0], alone], None)
    kind = create_model("TaskOptions", __base__=EvaluationOptions, **declared)
    for shared in owners:
        kind.model_fields[shared].description = descriptions[shared]
    return kind


def run(options: Options) -> int:
    """Parse the options of the tasks, evaluate, write the results, print a summary."""
    kind, args = parse_rest(options)
    return run_command(kind, partial(_evaluate, options.tasks), args)


def parse_rest(options: Options) -> tuple[type[EvaluationOptions], argparse.Namespace]:
    """The type of the options that follow the tasks, and the parsed arguments."""
    kind = options_of(options.tasks)
    parser = Parser(prog=f"megatape evaluate {','.join(options.tasks)}")
    add_options(parser, kind)
    return kind, parser.parse_args(options.rest)


def _alone(task: str, name: str) -> str:
    """The name of an option of one task, which several tasks have."""
    return f"{task.replace('-', '_')}_{name}"


def _fill(task: str, options: EvaluationOptions) -> Any:
    """A task with its options."""
    kind = TASKS[task].load()
    alone = {field.name: getattr(options, _alone(task, field.name), None) for field in fields(kind)}
    return options.fill(kind, **{name: value for name, value in alone.items() if value is not None})


def _evaluate(names: Sequence[str], options: EvaluationOptions) -> Paragraphs:
    options.check_folders(*options.models)
    tasks = {name: _fill(name, options) for name in names}
    for task in tasks.values():
        task.check()

    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from megatape.lab.tasks.engine.ranks import launched_ranks
    from megatape.lab.tasks.engine.runner import evaluate_models

    prepare_deepspeed()
    disable_progress_bar()
    set_verbosity_error()  # transformers warns of texts that are longer than the model was made for
    with launched_ranks(options.tp) as ranks:
        training_code = options.training_code or options.tp > 1
        found = options.fill(evaluate_models, tasks=tasks, ranks=ranks, training_code=training_code)
        yield from (text for text in found if ranks.topology.is_main)
