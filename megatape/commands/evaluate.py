"""Evaluates trained models on tasks."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.deepspeed_setup import prepare_deepspeed
from megatape.commands.cli.output import ParagraphPrinter
from megatape.commands.cli.parser import Parser
from megatape.commands.cli.running import run_command
from megatape.commands.options.shared_options import ImportOptions, descriptions
from megatape.commands.options.task_options import EvaluationOptions, build_task, options_of
from megatape.errors import UserError
from megatape.errors.suggestions import choose_one
from megatape.imports import OPTION
from megatape.lab.tasks.registry import TASKS
from megatape.utils.values.options import Listed, option

EXAMPLE = "megatape evaluate perplexity,passkey exported --data data/c4 --lengths 1024,2048 --output evaluated"


def _check_tasks(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of tasks. Raises UserError for an unknown or repeated name."""
    for name in names:
        if name not in TASKS:
            remedy = f"{choose_one(name, TASKS)}; to use a task of your own, give its file with {OPTION} before the tasks"
            raise UserError(f"{name!r} is not a task: {remedy}")
        if names.count(name) > 1:
            raise UserError(f"{name!r} is given twice")
    return names


class Options(ImportOptions):
    """Tasks. The other options depend on them.

    Attributes:
        tasks: tasks to evaluate, see below; `megatape evaluate TASK --help` shows their options
        rest: models and options of the tasks
    """

    lists: ClassVar = {"tasks": descriptions(TASKS)}

    tasks: Annotated[Listed[str], AfterValidator(_check_tasks)] = option(
        positional=True,
        metavar="TASK[,TASK]",
        completions=tuple(TASKS),
    )
    rest: tuple[str, ...] = option(
        (), positional=True, nargs=argparse.REMAINDER, metavar="MODEL_DIR [MODEL_DIR ...] --output FOLDER [options]"
    )


def run(options: Options) -> int:
    """Parse the options of the tasks, evaluate the models, write the results and print a summary. Returns the exit status."""
    kind, args = parse_rest(options)
    return run_command(kind, partial(_evaluate, options.tasks), args)


def parse_rest(options: Options) -> tuple[type[EvaluationOptions], argparse.Namespace]:
    """Parse the options that follow the tasks.

    Returns:
        Type of the options, and the parsed arguments.
    """
    kind = options_of(options.tasks)
    tasks = ",".join(options.tasks)
    parser = Parser(prog=f"megatape evaluate {tasks}")
    add_options(parser, kind)
    return kind, parser.parse_args(options.rest)


def _evaluate(names: Sequence[str], options: EvaluationOptions) -> None:
    """Evaluate the models, and print their results on the main rank."""
    options.check_folders(*options.models)
    tasks = {name: build_task(name, options) for name in names}
    for task in tasks.values():
        task.check()

    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from megatape.lab.tasks.engine.loading import LoadingOptions
    from megatape.lab.tasks.engine.ranks import launched_ranks
    from megatape.lab.tasks.engine.runner import evaluate_models
    from megatape.lab.tasks.engine.table import table

    prepare_deepspeed()
    disable_progress_bar()
    # Otherwise transformers warns about each text that is longer than the model's context.
    set_verbosity_error()
    with launched_ranks(options.tp) as ranks:
        loading = LoadingOptions(
            trust_remote_code=options.trust_remote_code,
            base=options.base,
            adapter=options.adapter,
            training_code=options.training_code or options.tp > 1,
        )
        printer = ParagraphPrinter()
        measures = evaluate_models(tasks, options.models, options.output, ranks, printer.print, loading)
        if ranks.topology.is_main:
            for name, task in tasks.items():
                printer.print(table(measures[name], task.paper()))
            printer.print(f"wrote {options.output}")
