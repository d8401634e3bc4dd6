"""Builds the options of `megatape evaluate` from the fields of the chosen tasks."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import create_model

from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.parser import Parser
from megatape.commands.cli.running import show_flags
from megatape.commands.options.shared_options import ModelOptions
from megatape.errors import UserError, flag, marked_message
from megatape.errors.suggestions import choose_one
from megatape.lab.study.execution.task_evaluation import TaskCommand
from megatape.lab.tasks.registry import TASKS
from megatape.utils.values.documented_model import split_docstring
from megatape.utils.values.options import Count, option, read_options

# Stand for the model and the folder that a study gives.
MODEL = "MODEL"
OUTPUT = "OUTPUT"


class EvaluationOptions(ModelOptions):
    """Options shared by all tasks: models, and the code running them.

    Attributes:
        models: checkpoint or exported model
        output: folder for the results; an interrupted evaluation resumes in the same folder
        training_code: run the model with the training code, without exporting it first; slow for
            tasks that generate text, because there is no cache
        tp: number of tensor-parallel ranks; more than one implies --training-code
    """

    resumable = True

    models: tuple[Path, ...] = option(positional=True, metavar="MODEL_DIR")
    output: Path = option(metavar="FOLDER")
    training_code: bool = False
    tp: Count = option(1, metavar="T")


@dataclass(frozen=True)
class _TaskField:
    """A field of a task, which is an option.

    Attributes:
        task: Name of the task.
        hint: Type of the field.
        default: Default, MISSING for a required option.
        description: Description, or "".
    """

    task: str
    hint: Any
    default: Any
    description: str


def options_of(tasks: Sequence[str]) -> type[EvaluationOptions]:
    """Return the type of the options following the tasks on the command line.

    Tasks share options with the same name. If a shared option is not given, each task has its own default. For setting a
    shared option in one task only, there is an option prefixed with the task name, such as --passkey-lengths.

    Args:
        tasks: Task names.
    """
    fields_by_option = _fields_by_option(tasks)
    # Option name -> type and default (... if required), as expected by pydantic's create_model.
    declared: dict[str, Any] = {}
    lines = []
    for name, task_fields in fields_by_option.items():
        declared[name] = (task_fields[0].hint, _shared_default(task_fields))
        description = _joined_description(task_fields)
        if description:
            lines.append(f"    {name}: {description}")
    for shared, task_fields in fields_by_option.items():
        if len(task_fields) == 1:
            continue
        for field in task_fields:
            form = option(description=f"`{shared}` of {field.task} alone", metavar=shared.upper())
            declared[_name_for_one(field.task, shared)] = (Annotated[field.hint, form], None)

    docstring = "\n".join(["Options of tasks.", "", "Attributes:", *lines])
    return create_model("TaskOptions", __base__=EvaluationOptions, __doc__=docstring, **declared)


def _fields_by_option(tasks: Sequence[str]) -> dict[str, list[_TaskField]]:
    """Return the fields of tasks by option name."""
    fields_by_option: dict[str, list[_TaskField]] = {}
    for task_name in tasks:
        task = TASKS[task_name].load()
        _, descriptions = split_docstring(task)
        hints = get_type_hints(task, include_extras=True)
        for field in fields(task):
            description = descriptions.get(field.name, "")
            task_field = _TaskField(task_name, hints[field.name], field.default, description)
            fields_by_option.setdefault(field.name, []).append(task_field)
    return fields_by_option


def _shared_default(task_fields: Sequence[_TaskField]) -> Any:
    """Return the default of an option: ... if a task requires it, None if the tasks' defaults differ."""
    defaults = [field.default for field in task_fields]
    if MISSING in defaults:
        return ...
    if any(default != defaults[0] for default in defaults):
        return None
    return defaults[0]


def _joined_description(task_fields: Sequence[_TaskField]) -> str:
    """Return the description of an option. If the tasks differ, each has its own part, with its default."""
    is_required = _shared_default(task_fields) is ...
    defaults_differ = any(field.default != task_fields[0].default for field in task_fields)
    parts: dict[str, list[str]] = {}
    for field in task_fields:
        text = field.description
        if defaults_differ and not is_required and field.default is not None:
            text += f" (default {field.default})"
        if text:
            parts.setdefault(text, []).append(field.task)
    if len(parts) < 2:
        return "".join(parts)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in parts.items())


def build_task(name: str, options: EvaluationOptions) -> Any:
    """Create a task from parsed options.

    Args:
        name: Task name.
        options: Options, of a type returned by `options_of`.
    """
    task_type = TASKS[name].load()
    values: dict[str, Any] = {}
    for field in fields(task_type):
        # For a shared field, `options_of` also declared an option for this task alone.
        value = getattr(options, _name_for_one(name, field.name), None)
        if value is not None:
            values[field.name] = value
        elif field.name in options.model_fields_set:
            values[field.name] = getattr(options, field.name)
    return task_type(**values)


def _name_for_one(task: str, shared: str) -> str:
    """Return the option name that sets a shared option for one task."""
    prefix = task.replace("-", "_")
    return f"{prefix}_{shared}"


def parse_task(text: str) -> TaskCommand:
    """Parse a task with its options, given to a study that evaluates its models, and check them as `megatape evaluate` does.

    Args:
        text: Words as in a shell, such as "passkey --lengths 1024,2048".

    Raises:
        UserError: The task is unknown, an option is wrong, or the words name a model or a folder, which the study chooses.
    """
    given = f"{flag('evaluate')} {text!r}"
    try:
        command = TaskCommand.parse(text)
    except UserError as error:
        raise UserError(f"{given}: {marked_message(error)}") from None
    if command.task not in TASKS:
        raise UserError(f"{given}: {command.task!r} is not a task: {choose_one(command.task, TASKS)}")
    kind = options_of([command.task])
    parser = Parser(prog=f"megatape evaluate {command.task}")
    add_options(parser, kind)
    try:
        parsed = parser.parse_args([MODEL, "--output", OUTPUT, *command.options])
        options = read_options(kind, vars(parsed))
        build_task(command.task, options).check()
    except UserError as error:
        raise UserError(f"{given}: {show_flags(kind, error)}") from None
    if options.models != (Path(MODEL),) or options.output != Path(OUTPUT):
        raise UserError(f"{given}: leave out models and --output, because the study evaluates its own models in its folder")
    if options.tp > 1:
        raise UserError(f"{given}: leave out --tp, because a study evaluates each model in one process")
    return command
