"""Parsers of commands from their options, and flags in place of fields in messages."""

import argparse
import re
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from megatape.config.section import Registered
from megatape.errors import UserError
from megatape.imports import import_given
from megatape.options import CommandOptions, Options, argument_of, read_options


def add_options(parser: argparse.ArgumentParser, kind: type[CommandOptions]) -> None:
    """Declare the options of a command. argparse leaves their values as text; their types check it (`read_options`)."""
    described = {name: field for name, field in kind.model_fields.items() if field.description is not None}
    groups = {name: names for names in (*kind.at_most_one, *kind.exactly_one) for name in names}
    for name in described:
        names = groups.get(name, (name,))
        target: argparse._ActionsContainer = parser
        if name != names[0]:
            continue  # it is declared beside the first of its group, so that the usage shows the group
        if name in groups:
            target = parser.add_mutually_exclusive_group(required=names in kind.exactly_one)
        for each in names:
            target.add_argument(flag_of(each, described[each]) or each, **_arguments(each, described[each]))


def run_command(kind: type[Options], run: Callable[[Options], int], args: argparse.Namespace) -> int:
    """Run a command with the options that were parsed.

    Args:
        kind: type of its options.
        run: the command.
        args: parsed arguments; those of no option are ignored.

    Returns:
        The exit status.

    Raises:
        UserError: As `read_options` and `run` raise it, with flags for the names of options.
    """
    try:
        for text in getattr(args, "imports", ()):
            import_given(text)  # first: the types of other options look names up in megatape/registry.py
        return run(read_options(kind, vars(args)))
    except UserError as error:
        error.args = (name_flag(kind, str(error)),)
        raise


def name_flag(kind: type[CommandOptions], message: str) -> str:
    """A message in which the name of an option, at the beginning or in backquotes, such as `max_documents`, is its flag."""

    def flag(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        field = kind.model_fields.get(name)
        return field and flag_of(name, field) or found[0]

    return re.sub(r"^(\w+)(?=[ :,])|`(\w+)`", flag, message)


def flag_of(name: str, field: FieldInfo) -> str | None:
    """The flag of an option, None if it is given by its position."""
    argument = argument_of(field)
    return None if argument.get("positional") else argument.get("flag") or f"--{name.replace('_', '-')}"


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The values that an option can have, empty if there are too many to list."""
    annotation, metadata = _unwrapped(field)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    validators = [getattr(each, "func", None) for each in metadata]
    return tuple(name for each in validators if isinstance(each, Registered) for name in each.entries)


def default_of(field: FieldInfo) -> str:
    """The default of an option as one would write it, empty if there is none."""
    if field.is_required() or field.default in (None, False, ()):
        return ""
    return ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)


def metavar_of(field: FieldInfo) -> str | None:
    """What stands for the value of an option in its usage, None for the name of the option."""
    choices = choices_of(field)
    return argument_of(field).get("metavar") or (f"{{{','.join(choices)}}}" if choices else None)


def _arguments(name: str, field: FieldInfo) -> dict[str, Any]:
    """Keywords of argparse's add_argument."""
    argument, (annotation, metadata), default = argument_of(field), _unwrapped(field), default_of(field)
    words: dict[str, Any] = {"default": argparse.SUPPRESS, "help": str(field.description).replace("%", "%%")}
    words["help"] += f" (default {default})" if default else ""
    if annotation is bool:
        return {**words, "action": "store_true"}
    words["metavar"] = metavar_of(field)
    if argument.get("repeatable"):
        words["action"] = "append"
    elif get_origin(annotation) is tuple and not any(isinstance(each, BeforeValidator) for each in metadata):
        words["nargs"] = "+" if field.is_required() or not argument.get("positional") else "*"
    if not argument.get("positional"):
        words |= {"required": field.is_required(), "dest": name}
    return words | {key: argument[key] for key in ("nargs", "const") if key in argument}


def _unwrapped(field: FieldInfo) -> tuple[Any, list[Any]]:
    """The type of a field without `None` and `Annotated`, and what `Annotated` says of it."""
    annotation: Any = field.annotation
    metadata = list(field.metadata)
    members = [member for member in get_args(annotation) if member is not type(None)]
    if type(None) in get_args(annotation):
        (annotation,) = members
    if hasattr(annotation, "__metadata__"):
        metadata += annotation.__metadata__
        annotation = annotation.__origin__
    return annotation, metadata
